"""Following jobs: their log to the end, and their state until they have ended."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Final

from tercio.cli import human
from tercio.cli.errors import ExitCode
from tercio.cli.names import has_ended
from tercio.cli.output import state_text
from tercio.cli.progress import Progress
from tercio.cli.session import Session
from tercio.cli.tables import WAITING_STATES, job_run_time, job_why
from tercio.errors import UserError
from tercio.model.views import JobView, LogView

_POLL_FIRST_S: Final = 0.1
_POLL_LONGEST_S: Final = 1.0
_DECISION_S: Final = 1.0
"""How long a fresh job may take to be placed, or to wait for a reason."""


def wait_for_end(
    session: Session,
    job_ids: Sequence[str],
    *,
    timeout_s: float | None = None,
    is_any: bool = False,
) -> list[JobView]:
    """Return the jobs when all (or any) of them have ended.

    Raises:
        UserError: `timed_out` when `timeout_s` passes before.
    """
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    pause_s = _POLL_FIRST_S
    ended: dict[str, JobView] = {}
    with Progress(session, _waiting_text(job_ids)) as progress:
        while True:
            for job_id in job_ids:
                if job_id not in ended:
                    view = session.client.job(job_id)
                    progress.say(f"{view.id} {view.name} is {view.state}")
                    if has_ended(view.state):
                        ended[job_id] = view
            if len(ended) == len(job_ids) or (is_any and ended):
                return [ended[job_id] for job_id in job_ids if job_id in ended]
            if deadline_s is not None and time.monotonic() + pause_s > deadline_s:
                open_ids = [job_id for job_id in job_ids if job_id not in ended]
                raise UserError(
                    f"{', '.join(open_ids[:5])} had not ended in time",
                    code="timed_out",
                    hint=f"see 'tercio explain {open_ids[0]}'",
                )
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _POLL_LONGEST_S)


def report_end(session: Session, views: Sequence[JobView]) -> ExitCode:
    """Say how each job ended; the code is that of the worst."""
    code = ExitCode.OK
    for view in views:
        text = f"{view.id} {view.name} {state_text(session, view.state)}"
        if view.started_s is not None:
            text += f" after {job_run_time(view, session.now_s())}"
        if view.exit_code:
            text += f", exit code {view.exit_code}"
        if view.state != "succeeded":
            code = ExitCode.FAILED
            text += f": {human.told(view.message)}" if view.message else ""
        session.note(text)
    return code


def note_wait(session: Session, view: JobView, *, is_following: bool) -> None:
    """Say that a job waits and why, so that nobody sits before an empty log and wonders."""
    if view.state not in WAITING_STATES:
        return
    why = job_why(view)
    text = f"{view.id} {view.name} is {view.state}" + (f": {why}" if why else "")
    text += "\nits log comes here when it runs; Ctrl-C leaves it waiting" if is_following else ""
    session.note(session.paint(text, "dim", stream=sys.stderr))


def print_log(session: Session, job_id: str, *, task: int | None = None) -> None:
    """Follow a job's log to its end on stdout, the task in front where there are several."""
    view = _decided(session, job_id)
    note_wait(session, view, is_following=True)
    has_prefix = task is None and view.task_count > 1
    for line in session.client.logs(job_id, task=task, is_following=True):
        write_line(session, line, has_prefix=has_prefix)


def _decided(session: Session, job_id: str) -> JobView:
    """Return a job that was just submitted, once the first scheduling cycle has looked at it."""
    deadline_s = time.monotonic() + _DECISION_S
    while True:
        view = session.client.job(job_id)
        if view.state != "queued" or view.reason or time.monotonic() > deadline_s:
            return view
        time.sleep(_POLL_FIRST_S)


def write_line(
    session: Session, line: LogView, *, has_prefix: bool, has_time: bool = False
) -> None:
    """Write one line of a log; what the engine itself says goes to stderr."""
    prefix = f"{session.paint(f'[{line.task}]', 'cyan')} " if has_prefix else ""
    if has_time:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(line.at_s))
        prefix = f"{stamp}.{int(line.at_s % 1 * 1000):03d}Z {prefix}"
    if line.stream == "tercio":
        sys.stdout.flush()
        session.note(f"{prefix}{session.paint(line.text, 'dim', stream=sys.stderr)}")
        return
    sys.stdout.write(f"{prefix}{line.text}" + ("" if line.is_partial else "\n"))
    sys.stdout.flush()


def _waiting_text(job_ids: Sequence[str]) -> str:
    return job_ids[0] if len(job_ids) == 1 else f"{len(job_ids)} jobs"
