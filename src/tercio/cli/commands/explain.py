"""`tercio explain`."""

from __future__ import annotations

import click

from tercio.cli import details, human
from tercio.cli.completing import Name
from tercio.cli.names import find_job
from tercio.cli.output import Column, Listing, Output, output_options, show_one, state_text, write
from tercio.cli.session import Session
from tercio.cli.verbs import Verb, pass_session
from tercio.client.transport import quote
from tercio.model.views import DecisionView

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
    tercio explain llama-sft -o json
    """,
)
@click.argument("job", metavar="JOB", type=Name("job"))
@output_options
@pass_session
def command(session: Session, job: str, output: Output) -> None:
    """Say why a job waits or was placed where it is.

    Names the true blocker with its numbers, who holds what the job wants, and the smallest
    change that would start it.
    """
    job_id = find_job(session, job)
    body = session.fetch(f"/v1/jobs/{quote(job_id)}/decision")

    def tell(view: DecisionView) -> None:
        shown = session.client.job(job_id)
        waited = ""
        if shown.started_s is None and shown.ended_s is None:
            waited = f" for {human.ago(shown.submitted_s, session.now_s())}"
        title = session.paint(job_id, "bold")
        write(f"{title} {shown.name}  {state_text(session, shown.state)}{waited}")
        details.decision(session, view.decision)

    show_one(session, output, LISTING, body, tell)
