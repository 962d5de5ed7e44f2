"""What every reader of a foreign file makes: native jobs, and a report of what changed."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from tercio.formats.document import Json

JobObject = dict[str, Json]
"""A job in the form of a native file, as `formats.native.read_job_object` takes it."""


class Fate(StrEnum):
    """What became of a field that has no exact counterpart."""

    CHANGED = "changed"
    DROPPED = "dropped"
    REFUSED = "refused"


class Loss(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One field of the file that is not kept as it stands.

    Attributes:
        field: its name in the foreign format, such as `--qos` or `resources.disk_size`.
        value: as written, shortened.
        fate: whether it means something else now, nothing, or keeps the job from running.
        why: what is done in its place, or what to do.
        line: from 1; 0 where there is none.
    """

    field: str
    value: str
    fate: Fate
    why: str
    line: int = 0

    @property
    def text(self) -> str:
        """The loss in one line."""
        where = f"line {self.line}: " if self.line else ""
        value = f" {self.value}" if self.value else ""
        return f"{where}{self.field}{value}: {self.fate.value}: {self.why}"


class Converted(msgspec.Struct, frozen=True, kw_only=True):
    """A foreign file as native jobs.

    Attributes:
        kind: `sbatch`, `sky`, `dstack` or `kubernetes`.
        jobs: in the order of the file.
        losses: in the order of the file.
        is_held: whether the file asks to wait for a release.
    """

    kind: str
    jobs: tuple[JobObject, ...]
    losses: tuple[Loss, ...] = ()
    is_held: bool = False


class SiteMap(msgspec.Struct, frozen=True, kw_only=True):
    """What names of this site mean: a foreign script seldom says the type of its devices.

    Attributes:
        partitions: device type (`H100`, `A100-80GB`) by Slurm partition.
        queues: paths of queues that exist; a partition or pool of the same name goes there.
    """

    partitions: Mapping[str, str] = {}
    queues: frozenset[str] = frozenset()


VALUE_SHOWN: Final = 60


class Report:
    """Collects losses while a file is read."""

    def __init__(self) -> None:
        self.losses: list[Loss] = []

    def changed(self, field: str, value: object, why: str, line: int = 0) -> None:
        """Note a field that means something else now."""
        self._add(field, value, Fate.CHANGED, why, line)

    def dropped(self, field: str, value: object, why: str, line: int = 0) -> None:
        """Note a field that has no effect."""
        self._add(field, value, Fate.DROPPED, why, line)

    def refused(self, field: str, value: object, why: str, line: int = 0) -> None:
        """Note a field without which the job must not run."""
        self._add(field, value, Fate.REFUSED, why, line)

    def _add(self, field: str, value: object, fate: Fate, why: str, line: int) -> None:
        shown = "" if value is None else " ".join(str(value).split())
        if len(shown) > VALUE_SHOWN:
            shown = f"{shown[: VALUE_SHOWN - 3]}..."
        self.losses.append(Loss(field=field, value=shown, fate=fate, why=why, line=line))


def tidy(job: JobObject) -> JobObject:
    """Return the job without keys that are empty or None; `on: []` retries nothing, so it stays."""
    found: JobObject = {}
    for key, value in job.items():
        inner = tidy(dict(value)) if isinstance(value, Mapping) else value
        if inner is None or (inner in ({}, [], "") and key != "on"):
            continue
        found[key] = inner
    return found
