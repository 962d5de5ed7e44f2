"""`tercio show`."""

from __future__ import annotations

import click

from tercio.cli import details, steps, tables
from tercio.cli.completing import Name
from tercio.cli.names import find_object, suggest
from tercio.cli.output import Output, output_options, show_one
from tercio.cli.session import Session
from tercio.cli.verbs import Verb, pass_session
from tercio.client.transport import quote
from tercio.errors import UserError


@click.command(
    cls=Verb,
    examples="""
    tercio show job-00001
    tercio show llama-sft                 # by name: the living job, else the newest
    tercio show node/n1
    tercio show queue/research/nlp -o json
    tercio show llama-sft --steps         # which rank is slow
    """,
)
@click.argument("name", metavar="[KIND/]NAME", type=Name("job", "node", "queue"))
@click.option("--steps", "is_steps", is_flag=True, help="The ranks of a job by their step marks.")
@output_options
@pass_session
def command(session: Session, name: str, output: Output, *, is_steps: bool) -> None:
    """Show one job, node or queue.

    With --steps, the time that each rank of the job computes in a step, without its wait for
    the others, against the median rank; OVER TIME is darker where it was slower.
    """
    kind, found = find_object(session, name)
    if is_steps:
        if kind != "job":
            raise UserError(f"--steps: {kind} {found} has no steps", hint="name a job")
        steps.show(session, output, session.fetch(f"/v1/jobs/{quote(found)}/steps"))
        return
    show_object(session, kind, found, output)


def show_object(session: Session, kind: str, name: str, output: Output) -> None:
    """Print one object of a known kind."""
    match kind:
        case "job":
            body = session.fetch(f"/v1/jobs/{quote(name)}")
            listing = tables.jobs(session)
            show_one(session, output, listing, body, lambda job: details.job(session, job))
        case "node":
            body = fetch_node(session, name)
            show_one(session, output, tables.nodes(), body, lambda n: details.node(session, n))
        case _:
            body = fetch_queue(session, name)
            show_one(session, output, tables.queues(), body, lambda q: details.queue(session, q))


def fetch_node(session: Session, name: str) -> bytes:
    """Return the body of a node; an unknown one is answered with the nearest names."""
    try:
        return session.fetch(f"/v1/nodes/{quote(name)}")
    except UserError as error:
        known = [node.name for node in session.client.every_node()]
        raise suggest(error, "node", name, known) from None


def fetch_queue(session: Session, path: str) -> bytes:
    """Return the body of a queue; an unknown one is answered with the nearest paths."""
    segments = "/".join(quote(part) for part in path.split("/"))
    try:
        return session.fetch(f"/v1/queues/{segments}")
    except UserError as error:
        known = [queue.path for queue in session.client.every_queue()]
        raise suggest(error, "queue", path, known) from None
