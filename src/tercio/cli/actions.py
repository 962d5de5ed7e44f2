"""The verbs that change jobs: one shape for cancel, hold, release, requeue, suspend and resume."""

from __future__ import annotations

from collections.abc import Callable

import click

from tercio.cli import tables
from tercio.cli.completing import Name
from tercio.cli.errors import ExitCode, report
from tercio.cli.names import find_job
from tercio.cli.output import print_table
from tercio.cli.session import Session
from tercio.cli.verbs import Verb, pass_session
from tercio.client import Client
from tercio.errors import UserError
from tercio.model.views import JobView


def job_verb(
    *,
    summary: str,
    done: str,
    examples: str,
    call: Callable[[Client, str], JobView],
) -> click.Command:
    """Return a command that does one thing to each of the jobs named.

    Args:
        summary: help text.
        done: what the note says was done, such as `held`.
        examples: for the help.
        call: asks the server.
    """

    @click.command(cls=Verb, help=summary, examples=examples)
    @click.argument("jobs", metavar="JOB...", nargs=-1, required=True, type=Name("job"))
    @click.option("--plan", "is_plan", is_flag=True, help="Only show which jobs it would be.")
    @pass_session
    def command(session: Session, jobs: tuple[str, ...], is_plan: bool) -> int:
        return on_each_job(session, jobs, is_plan=is_plan, done=done, call=call)

    return command


def on_each_job(
    session: Session,
    jobs: tuple[str, ...],
    *,
    is_plan: bool,
    done: str,
    call: Callable[[Client, str], JobView],
) -> int:
    """Do it to every job, go on after a refusal, and return the code of the first refusal."""
    code = ExitCode.OK
    planned: list[JobView] = []
    for text in jobs:
        try:
            job_id = find_job(session, text)
            if is_plan:
                planned.append(session.client.job(job_id))
                continue
            view = call(session.client, job_id)
        except UserError as error:
            import sys

            if len(jobs) == 1 or error.code == "unavailable":
                raise
            color = session.has_color(sys.stderr)
            refused = report(error, is_debug=session.is_debug, has_color=color)
            code = code or refused
        else:
            session.note(f"{done} {view.id} {view.name} (now {view.state})")
    if planned:
        session.note(f"would be {done}:")
        columns = [column for column in tables.jobs(session).columns if not column.is_wide]
        print_table(session, columns, planned)
    return code
