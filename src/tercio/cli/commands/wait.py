"""`tercio wait`."""

from __future__ import annotations

import click

from tercio.cli.completing import Name
from tercio.cli.following import report_end, wait_for_end
from tercio.cli.names import find_job
from tercio.cli.session import Session
from tercio.cli.verbs import Verb, pass_session
from tercio.model.units import parse_duration_s


@click.command(
    cls=Verb,
    examples="""
    tercio wait job-00001
    tercio wait --timeout 2h job-00001 job-00002
    tercio wait $(tercio submit -q job.yaml) && echo done
    """,
)
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True, type=Name("job"))
@click.option("--timeout", metavar="TIME", help="Give up after this long, with exit code 9.")
@click.option("--any", "is_any", is_flag=True, help="Until one of them has ended.")
@pass_session
def command(session: Session, jobs: tuple[str, ...], timeout: str | None, is_any: bool) -> int:
    """Wait until jobs have ended. Exit code 1 when one of them did not succeed."""
    timeout_s = None if timeout is None else parse_duration_s(timeout, field="--timeout")
    job_ids = [find_job(session, text) for text in jobs]
    views = wait_for_end(session, job_ids, timeout_s=timeout_s, is_any=is_any)
    return report_end(session, views)
