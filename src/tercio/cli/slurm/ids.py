"""The jobs that people and scripts name by Slurm's numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tercio.cli.session import Session
from tercio.errors import UserError
from tercio.model.ids import JobId, array_parent, job_number, numbered_job
from tercio.model.views import JobView

_MOST_ELEMENTS = 100_000


def read_ids(texts: Iterable[str]) -> list[str]:
    """Return our ids of `12`, `12_3`, `12_[1-3,5]`, several by commas; our own stay as they are.

    Raises:
        UserError: it is no number of a job.
    """
    found: list[str] = []
    for text in texts:
        for word in re.findall(r"[^,\[\]]+(?:\[[^\]]*\])?", text):
            found += _read(word.strip())
    return list(dict.fromkeys(found))


def _read(word: str) -> list[str]:
    if re.fullmatch(r"job-[0-9a-z]{5,}(\.\d+)?", word):
        return [word]
    found = re.fullmatch(r"(\d{1,15})(?:\.(?:batch|extern|\d+))?(?:_(?:(\d{1,7})|\[(.+)\]))?", word)
    if found is None or not int(found[1]):
        raise UserError(f"'{word}' is no job id", hint="write 12, 12_3 or 12_[1-3]")
    if found[3] is None:
        return [numbered_job(word.partition(".")[0])]
    indexes: list[int] = []
    for piece in found[3].partition("%")[0].split(","):
        low, _, high = piece.partition("-")
        if not low.isdigit() or (high and not high.isdigit()):
            raise UserError(f"'{word}' is no job id", hint="write 12_[1-3,5]")
        if int(high or low) - int(low) > _MOST_ELEMENTS:
            raise UserError(f"'{word}' names too many elements", hint="write the array's own id")
        indexes += range(int(low), int(high or low) + 1)
    return [numbered_job(f"{found[1]}_{index}") for index in indexes]


def find_jobs(session: Session, ids: Sequence[str], *, is_all: bool) -> list[JobView]:
    """Return jobs oldest first: those of ids with the elements of arrays, or all that live.

    Raises:
        UserError: `not_found` for an id that no job has.
    """
    listed = session.client.every_job(is_all=is_all or bool(ids))
    every = sorted(listed, key=lambda view: (view.submitted_s, job_number(JobId(view.id))))
    if not ids:
        return every
    wanted = set(ids)
    found = [v for v in every if v.id in wanted or array_parent(JobId(v.id)) in wanted]
    there = {view.id for view in found}
    for job in ids:
        if job not in there:
            raise UserError("Invalid job id specified", code="not_found", hint="see 'sacct -a'")
    return found
