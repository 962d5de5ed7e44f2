"""Every format of a trace: how it is recognised, and its reader."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tercio.errors import UserError, did_you_mean
from tercio.twin.trace import Trace
from tercio.twin.traces.clouds import ITP_COLUMNS, read_itp, read_openb
from tercio.twin.traces.philly import COLUMNS as PHILLY_COLUMNS
from tercio.twin.traces.philly import read_philly_files
from tercio.twin.traces.reading import Reading
from tercio.twin.traces.sacct import read_sacct
from tercio.twin.traces.source import Source
from tercio.twin.traces.swf import is_swf, read_swf
from tercio.twin.traces.workloads import (
    GAVEL_LONG,
    GAVEL_SHORT,
    SIA_COLUMNS,
    read_gavel,
    read_sia,
)

READERS: Final[Mapping[str, Callable[[Sequence[Source], Reading], Trace]]] = {
    "sacct": read_sacct,
    "swf": read_swf,
    "philly": read_philly_files,
    "openb": read_openb,
    "itp": read_itp,
    "sia": read_sia,
    "gavel": read_gavel,
}
"""By name. `journal` is not a text and is read by `read_journal`."""
_NEEDS_PROFILES: Final = frozenset({"sia", "gavel"})
_TABLES: Final[tuple[tuple[str, Sequence[str]], ...]] = (
    ("philly", PHILLY_COLUMNS),
    ("openb", ("name", "cpu_milli", "num_gpu", "gpu_milli")),
    ("itp", ITP_COLUMNS),
    ("sia", SIA_COLUMNS),
)


def needs_profiles(name: str) -> bool:
    """Whether a format records work, so that run times follow from profiles."""
    return name in _NEEDS_PROFILES


def detect(source: Source) -> str | None:
    """Return the format of a text from its first lines, or None when none fits."""
    lines = [line for line in source.text[:20_000].splitlines() if line.strip()]
    if not lines:
        return None
    first = lines[0].removeprefix("\ufeff")
    if "|" in first and "JobID" in first.split("|"):
        return "sacct"
    columns = {name.strip() for name in first.split(",")}
    for name, needed in _TABLES:
        if columns >= set(needed):
            return name
    if len(first.split("\t")) in (len(GAVEL_SHORT), len(GAVEL_LONG)):
        return "gavel"
    body = [line for line in lines if not line.lstrip().startswith(";")]
    if (body and is_swf(body[0])) or (not body and first.startswith(";")):
        return "swf"
    return None


def read_trace(sources: Sequence[Source], reading: Reading, *, name: str | None = None) -> Trace:
    """Read a trace of one or more files.

    Args:
        sources: the files, of one format.
        reading: how.
        name: of the format, or None to recognise it.

    Raises:
        UserError: the format is unknown or not recognised, or a value cannot be read.
    """
    if name is None:
        name = detect(sources[0])
        if name is None:
            raise UserError(
                f"{sources[0].name} is of no format that is known here",
                field="trace",
                hint=f"name it with --format: {', '.join((*READERS, 'journal'))}",
            )
    reader = READERS.get(name)
    if reader is None:
        raise UserError(
            f"--format {name!r} is not a format",
            field="format",
            hint=did_you_mean(name, READERS) or f"formats: {', '.join((*READERS, 'journal'))}",
        )
    return reader(sources, reading)
