"""`squeue`: jobs that wait or run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tercio.cli.output import write
from tercio.cli.session import Session
from tercio.cli.slurm import filters
from tercio.cli.slurm.columns import FIELDS, Seen, line, read_letters, read_names
from tercio.cli.slurm.ids import find_jobs, read_ids
from tercio.cli.slurm.parsing import parse
from tercio.cli.slurm.words import is_waiting_array
from tercio.model.views import JobView

SHORT: Final = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
LONG: Final = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"
START: Final = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %R"
_VALUED: Final = {**filters.VALUED, "format": "o", "Format": "O", "sort": "S", "clusters": "M"}
_FLAGS: Final = {
    **filters.FLAGS, "noheader": "h", "long": "l", "start": "", "all": "a", "array": "r",
}  # fmt: skip


def run(session: Session, words: Sequence[str]) -> int:
    """List jobs; without -j or -t those that have not ended."""
    options, _ = parse(words, valued=_VALUED, flags=_FLAGS)
    if "Format" in options:
        columns = read_names(options["Format"], width=20)
    else:
        form = LONG if "long" in options else START if "start" in options else SHORT
        columns = read_letters(options.get("format", form))
    ids = read_ids([options["jobs"]]) if options.get("jobs") else []
    views = find_jobs(session, ids, is_all="states" in options)
    if "noheader" not in options:
        write(line(columns, lambda name: FIELDS[name][0]))
    for view in views:
        if _is_listed(view, has_states="states" in options) and filters.is_wanted(view, options):
            seen = Seen(session, view)
            write(line(columns, lambda name, seen=seen: FIELDS[name][1](seen)))  # type: ignore[misc]
    return 0


def _is_listed(view: JobView, *, has_states: bool) -> bool:
    """Ended jobs are for sacct; an array stands for its elements that wait."""
    if view.array is not None:
        return is_waiting_array(view)
    return has_states or view.ended_s is None
