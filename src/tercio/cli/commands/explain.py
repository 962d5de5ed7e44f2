"""`tercio explain`."""

from __future__ import annotations

from collections.abc import Sequence

import click
import msgspec

from tercio.cli import details, human
from tercio.cli.commands.plan import show_plan_body
from tercio.cli.completing import Name
from tercio.cli.names import find_job
from tercio.cli.output import Column, Listing, Output, output_options, show_one, state_text, write
from tercio.cli.session import Session
from tercio.cli.verbs import Verb, pass_session
from tercio.client.transport import quote
from tercio.errors import UserError
from tercio.model.job import JobState
from tercio.model.views import DecisionView, StoryLine

LISTING: Listing[DecisionView] = Listing(
    (
        Column("JOB", "decision.job", lambda view: view.decision.job),
        Column("OUTCOME", "decision.outcome", lambda view: view.decision.outcome),
        Column("REASON", "decision.reason", lambda view: view.decision.reason),
        Column("MESSAGE", "decision.message", lambda v: v.decision.message, is_flexible=True),
    ),
    DecisionView,
    lambda view: view.decision.job,
    "no decision",
)


@click.command(
    cls=Verb,
    examples="""
    tercio explain job-00004
    tercio explain llama-sft --what-if gpus=4
    tercio explain llama-sft --what-if tasks=2 --what-if queue=research -o json
    """,
)
@click.argument("job", metavar="JOB", type=Name("job"))
@click.option(
    "--what-if",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help="Dry-run a change: gpus=4 tasks=2 type=A100 queue=Q topology=none after=JOB "
    "priority=10 time=2h.",
)
@output_options
@pass_session
def command(session: Session, job: str, changes: tuple[str, ...], output: Output) -> int | None:
    """Say why a job waits or was placed where it is.

    Names the true blocker with its numbers, who holds what the job wants, and the smallest
    change that would start it. With --what-if, says when the waiting job would start if it
    were changed so; nothing is changed. Exit code then: 0 now, 7 later, 8 never.
    """
    job_id = find_job(session, job)
    if changes:
        return _what_if(session, job_id, changes, output)
    body = session.fetch(f"/v1/jobs/{quote(job_id)}/decision")

    def tell(view: DecisionView) -> None:
        shown = session.client.job(job_id)
        waited = ""
        if shown.started_s is None and shown.ended_s is None:
            waited = f" for {human.ago(shown.submitted_s, session.now_s())}"
        title = session.paint(job_id, "bold")
        write(f"{title} {shown.name}  {state_text(session, shown.state)}{waited}")
        is_again = shown.attempt > 0 and shown.state == JobState.QUEUED
        stop = last_stop(session.client.story(job_id).rows) if is_again else None
        details.decision(session, view.decision, stop=stop)

    show_one(session, output, LISTING, body, tell)
    return None


def last_stop(rows: Sequence[StoryLine]) -> StoryLine | None:
    """Return the line of a waiting job's story that says for whom its last attempt was stopped."""
    for line in reversed(rows):
        if line.kind == "JobPlaced":
            return None
        if line.kind == "JobEvicted" and line.text.startswith("stopped"):
            return line
    return None


def _what_if(session: Session, job_id: str, changes: tuple[str, ...], output: Output) -> int:
    wanted: dict[str, str] = {}
    for text in changes:
        key, equals, value = text.partition("=")
        if not equals or not key or not value:
            raise UserError(f"--what-if: '{text}' is not KEY=VALUE", hint="write it as gpus=4")
        wanted[key] = find_job(session, value) if key == "after" else value
    body = session.post(
        f"/v1/jobs/{quote(job_id)}/what-if", msgspec.json.encode({"changes": wanted})
    )
    head = " ".join(f"{key}={value}" for key, value in wanted.items())
    return show_plan_body(session, body, output, head=f"{job_id} with {head}")
