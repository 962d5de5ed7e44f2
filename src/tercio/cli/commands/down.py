"""`tercio down`."""

from __future__ import annotations

import click

from tercio.cli import human, tables
from tercio.cli.following import wait_for_end
from tercio.cli.local_server import (
    lock_holder,
    read_server_file,
    running_server,
    state_dir_of,
    stop_server,
)
from tercio.cli.output import print_table, write
from tercio.cli.progress import Progress
from tercio.cli.session import Session
from tercio.cli.verbs import Verb, pass_session
from tercio.client.discovery import ServerFile
from tercio.errors import UserError


@click.command(
    cls=Verb,
    examples="""
    tercio down                  # running jobs go on; 'tercio up' adopts them
    tercio down --stop-jobs
    """,
)
@click.option("--state-dir", metavar="DIR", help="Of the server; default: TERCIO_STATE_DIR.")
@click.option("--stop-jobs", "is_stopping", is_flag=True, help="Cancel all jobs first.")
@click.option("--timeout", "timeout_s", type=float, default=60.0, metavar="SECONDS", hidden=True)
@click.option("--plan", "is_plan", is_flag=True, help="Only show what would be stopped.")
@click.option("-y", "--yes", "is_yes", is_flag=True, help="Do not ask.")
@pass_session
def command(
    session: Session,
    *,
    state_dir: str | None,
    is_stopping: bool,
    timeout_s: float,
    is_plan: bool,
    is_yes: bool,
) -> None:
    """Stop the server on this machine. Running jobs go on, unless --stop-jobs."""
    directory = state_dir_of(session, state_dir)
    found = read_server_file(directory)
    holder = lock_holder(directory)
    if holder is not None and (found is None or found.pid != holder):
        found = _unnamed_server(directory, holder, is_stopping=is_stopping)
    elif found is None or running_server(directory) is None:
        session.note(f"no server runs on {directory}")
        if is_stopping:
            session.note(
                "jobs that it left running go on; to stop them: "
                "tercio up --background, then tercio down --stop-jobs"
            )
        return
    if is_stopping:
        session.url = found.url
        if session.token_file is None:
            session.token_file = f"{directory}/token"
        jobs = list(session.client.every_job())
        job_ids = [job.id for job in jobs]
        if is_plan and jobs:
            session.note("would be cancelled:")
            columns = [column for column in tables.jobs(session).columns if not column.is_wide]
            print_table(session, columns, jobs)
        elif job_ids:
            count = human.quantity(len(job_ids), "job")
            session.confirm(f"cancel {count}?", is_yes=is_yes)
            for job_id in job_ids:
                session.client.cancel(job_id, reason="the server is stopped")
            wait_for_end(session, job_ids)
            session.note(f"cancelled {count}")
    if is_plan:
        write(f"would be stopped: the server of {directory} (process {found.pid})")
        return
    with Progress(session, "stopping the server"):
        stop_server(found, timeout_s=timeout_s)
    session.note(f"stopped the server of {directory}")
    if not is_stopping:
        session.note("jobs that run go on; 'tercio up --background' finds them again")


def _unnamed_server(directory: str, holder: int, *, is_stopping: bool) -> ServerFile:
    """Return the server whose server.json was lost or damaged: its journal's lock names it.

    Raises:
        UserError: `unavailable` when it would have to be asked for its jobs.
    """
    if is_stopping:
        raise UserError(
            f"a server (process {holder}) runs on {directory}, but cannot be asked for its jobs: "
            "server.json is lost or damaged",
            code="unavailable",
            hint="restart it with 'tercio down' and 'tercio up --background', then try again",
        )
    return ServerFile(url="", pid=holder)
