"""`tercio queue`."""

from __future__ import annotations

from typing import Final

import click
import msgspec

from tercio.cli import queue_past, sharing, tables
from tercio.cli.commands.logs import parse_since_s
from tercio.cli.commands.show import show_object
from tercio.cli.completing import Name
from tercio.cli.names import split_kind
from tercio.cli.output import Output, output_options, show_list
from tercio.cli.policies import apply_policy, parse_amounts, replace_queue
from tercio.cli.session import Session
from tercio.cli.verbs import Noun, Word, pass_session
from tercio.errors import UserError
from tercio.model.views import QueueList


@click.group(cls=Noun)
def command() -> None:
    """List, show and change queues, and see who has what. `tercio queue` alone lists them."""


_SITE: Final = click.option(
    "--site", metavar="SITE", help="Count what runs at this site and what may start there."
)


def _tell_site(session: Session, output: Output, site: str | None) -> None:
    """Say what of a table of queues is of one site, and what is not."""
    if site is not None and output.is_table:
        session.note(
            f"used, running, waiting and wanted are those of site {site}, jobs that may also start "
            "elsewhere included; shares, guarantees and limits are over all sites"
        )


@command.command("list", examples="tercio queue list -o wide")
@_SITE
@output_options
@pass_session
def list_queues(session: Session, site: str | None, output: Output) -> None:
    """List queues: what each uses, may use and waits for."""
    pages = session.fetch_pages("/v1/queues", site=site)
    show_list(session, output, tables.queues(has_elsewhere=site is not None), pages)
    _tell_site(session, output, site)


@command.command(
    "tree",
    examples="""
    tercio queue tree
    tercio queue tree --site hpc
    """,
)
@_SITE
@output_options
@pass_session
def tree(session: Session, site: str | None, output: Output) -> None:
    """Show the queue tree: shares, use, what is borrowed and lent, what waits.

    A parent's numbers include its children's. ENTITLED is the share now, of what the queue
    wants; USED above GUARANTEE is borrowed; LENT is guaranteed, not used, and held by others.
    """
    pages = session.fetch_pages("/v1/queues", site=site)
    rows = [row for page in pages for row in msgspec.json.decode(page, type=QueueList).rows]
    listing = sharing.queue_tree(rows, has_elsewhere=site is not None)
    show_list(session, output, listing, pages)
    _tell_site(session, output, site)


@command.command("limits", examples="tercio queue limits")
@output_options
@pass_session
def limits(session: Session, output: Output) -> None:
    """Show limits of users and tenants, and what they have of them.

    Device-hours count what was used in the window and what running jobs will use by their
    time limits. A user who is no operator sees their own and those of their tenant.
    """
    show_list(session, output, sharing.owner_limits(session), [session.fetch("/v1/limits")])


@command.command(
    "history",
    examples="""
    tercio queue history                         the last hour, all queues
    tercio queue history research --since 1d
    tercio queue history --since 30d -o csv
    """,
)
@click.argument("path", metavar="[QUEUE]", required=False, type=Name("queue"))
@click.option("--since", default="1h", metavar="WHEN", help="1h (default) to 30d, or RFC 3339.")
@output_options
@pass_session
def history(session: Session, path: str | None, since: str, output: Output) -> None:
    """Show what queues held, were entitled to and waited for over time.

    With QUEUE, one line for each step of time; without, means of each queue and the course of
    USED. An hour is kept in steps of 20 s, a day of 5 min, 30 days of 1 h. PAST USE is device
    time, decayed.
    """
    kind, name = split_kind(path) if path is not None else ("", "")
    queue = (name if kind == "queue" else path) if path is not None else None
    body = session.fetch("/v1/queue-past", queue=queue, since=parse_since_s(session, since))
    queue_past.show(session, output, body, is_one=queue is not None)


@command.command("accuracy", examples="tercio queue accuracy")
@output_options
@pass_session
def accuracy(session: Session, output: Output) -> None:
    """Show how good start estimates were: what jobs were told, and when they started.

    Of the last jobs that were told a start, medians: WAIT, ERROR, and BIAS, which is above 0
    where jobs start later than told. INSIDE is the part that started in its band: 80 % is
    meant. The next estimates are corrected by this.
    """
    show_list(session, output, sharing.START_ACCURACY, [session.fetch("/v1/start-accuracy")])


@command.command("show", examples="tercio queue show research/nlp")
@click.argument("path", metavar="QUEUE", type=Name("queue"))
@output_options
@pass_session
def show(session: Session, path: str, output: Output) -> None:
    """Show one queue."""
    kind, name = split_kind(path)
    show_object(session, "queue", name if kind == "queue" else path, output)


@command.command(
    "set",
    examples="""
    tercio queue set research --weight 3
    tercio queue set research/nlp --limit H100:64,L4:8 --plan
    tercio queue set research/vision --create --guarantee H100:16
    """,
)
@click.argument("path", metavar="QUEUE", type=Name("queue"))
@click.option("--weight", type=click.IntRange(0), metavar="N", help="Part among its siblings.")
@click.option("--guarantee", metavar="H100:8,...", help="What it gets back on demand.")
@click.option("--limit", metavar="H100:8,...", help="What it may never pass; '' for none.")
@click.option("--lend-limit", metavar="H100:8,...", help="How much of the guarantee is lent.")
@click.option("--borrow-limit", metavar="H100:8,...", help="How far above the guarantee.")
@click.option("--order", type=Word("order", ("backfill", "strict")), help="Who may pass the head.")
@click.option("--preemptible/--not-preemptible", default=None, help="Default for its jobs.")
@click.option("--create", "is_new", is_flag=True, help="Make the queue when there is none.")
@click.option("--if-version", type=int, metavar="N", help="Refuse when the policy is not at N.")
@click.option("--plan", "is_plan", is_flag=True, help="Only show the change.")
@pass_session
def set_queue(
    session: Session,
    /,
    *,
    path: str,
    is_new: bool,
    if_version: int | None,
    is_plan: bool,
    **options: str | int | bool | None,
) -> None:
    """Change a queue. Every change is a new version of the policy."""
    amounts = ("guarantee", "limit", "lend_limit", "borrow_limit")
    changes = {
        key: parse_amounts(str(value), field=f"--{key.replace('_', '-')}")
        if key in amounts
        else value
        for key, value in options.items()
        if value is not None
    }
    if not changes and not is_new:
        raise UserError("nothing to change", hint="see 'tercio queue set --help'")
    view = session.client.policy()
    kind, name = split_kind(path)
    target = name if kind == "queue" else path
    policy = replace_queue(view.policy, target, changes, is_new=is_new)
    apply_policy(session, view, policy, if_version=if_version, is_plan=is_plan)
