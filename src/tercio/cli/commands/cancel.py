"""`tercio cancel`."""

from __future__ import annotations

import click

from tercio.cli.actions import on_each_job
from tercio.cli.completing import Name
from tercio.cli.session import Session
from tercio.cli.verbs import Verb, pass_session


@click.command(
    cls=Verb,
    examples="""
    tercio cancel job-00004
    tercio cancel llama-sft --reason 'wrong data'
    tercio ps -o name --user ana --state queued | xargs tercio cancel
    """,
)
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True, type=Name("job"))
@click.option("--reason", default="", metavar="TEXT", help="Kept in the story of the jobs.")
@click.option("--plan", "is_plan", is_flag=True, help="Only show which jobs it would be.")
@pass_session
def command(session: Session, jobs: tuple[str, ...], reason: str, is_plan: bool) -> int:
    """Stop jobs for good. Running ones get their grace to save what they have."""
    return on_each_job(
        session,
        jobs,
        is_plan=is_plan,
        done="cancelled",
        call=lambda client, job_id: client.cancel(job_id, reason=reason),
    )
