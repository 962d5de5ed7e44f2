"""`scancel`: stop jobs by id, or those that filters choose."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from tercio.cli.session import Session
from tercio.cli.slurm import filters
from tercio.cli.slurm.ids import find_jobs, read_ids
from tercio.cli.slurm.parsing import parse
from tercio.cli.slurm.words import shown_id
from tercio.errors import UserError

_VALUED: Final = {**filters.VALUED, "jobs": "", "signal": "s", "clusters": "M"}
_FLAGS: Final = {**filters.FLAGS, "quiet": "Q", "verbose": "v", "batch": "b", "full": "f"}
_STOPS: Final = ("KILL", "TERM", "INT", "9", "15", "2")


def run(session: Session, words: Sequence[str]) -> int:
    """Cancel; the code is 1 when an id was not that of a job."""
    options, rest = parse(words, valued=_VALUED, flags=_FLAGS)
    chosen = {name for name in options if name in (*filters.VALUED, "me")}
    if not rest and not chosen:
        raise UserError("No job identification provided", hint="write scancel 12, or -u USER")
    if options.get("signal", "KILL").upper().removeprefix("SIG") not in _STOPS:
        raise UserError(
            f"signal {options['signal']} is not sent to jobs",
            hint="a stop sends the job's checkpoint.signal first; or use tercio exec JOB -- kill",
        )
    code = 0
    if chosen:
        views = find_jobs(session, read_ids(rest), is_all=False)
        wanted = [v.id for v in views if v.ended_s is None and filters.is_wanted(v, options)]
    else:
        wanted = read_ids(rest)
    # Elements first: an array that is cancelled takes them along.
    for job in sorted(wanted, key=lambda job: "." not in job):
        try:
            session.client.cancel(job, reason="scancel")
        except UserError as error:
            if error.code == "unavailable":
                raise
            is_gone = error.code == "not_found"
            why = "Invalid job id specified" if is_gone else error.message
            if "quiet" not in options:
                sys.stderr.write(
                    f"scancel: error: Kill job error on job id {shown_id(job)}: {why}\n"
                )
            # As in Slurm, a job that has ended already is none to complain of.
            code = 1 if is_gone else code
    return code
