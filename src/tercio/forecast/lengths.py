"""How long a job will probably run, from jobs like it that ran before.

The nearest group with enough runs answers, with the median of its last runs: jobs of the same
user, name and size; of the same user and name; of the same user and size; of the same user; of
the same queue. Names are compared without their digits, since people number what they repeat.
Recent runs of the same user are the better predictor than any declared limit: Tsafrir, Etsion,
Feitelson, Backfilling Using System-Generated Predictions, TPDS 2007; by user, name and size for
GPU jobs: Hu et al., Characterization and Prediction of Deep Learning Workloads, SC 2021 (QSSF).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

_RUNS_KEPT: Final = 9
_QUEUE_LEAST: Final = 5
_GROUPS_KEPT: Final = 8192
"""Groups that got no run for the longest time go first."""


class Kind(NamedTuple):
    """What makes jobs alike. `devices` counts thousandths of all tasks together."""

    tenant: str
    user: str
    queue: str
    name: str
    devices: int


class Prediction(NamedTuple):
    """How long, and what from: the number of runs, and of whom."""

    run_s: float
    runs: int
    of: str


class Lengths(msgspec.Struct, kw_only=True, eq=False, omit_defaults=True):
    """The last run times in seconds by group, oldest first; groups in order of their last run."""

    runs: dict[str, list[float]] = {}

    def note(self, kind: Kind, run_s: float) -> None:
        """Count a job that ran through."""
        rounded_s = round(run_s, 3)
        for _, _, key in _groups(kind):
            kept = self.runs.pop(key, None)
            if kept is None:
                kept = []
            elif len(kept) >= _RUNS_KEPT:
                del kept[: len(kept) - _RUNS_KEPT + 1]
            kept.append(rounded_s)
            self.runs[key] = kept
        while len(self.runs) > _GROUPS_KEPT:
            del self.runs[next(iter(self.runs))]

    def predict(self, kind: Kind) -> Prediction | None:
        """Return how long such a job should run, or None when nothing like it ran."""
        for of, least, key in _groups(kind):
            found = self.runs.get(key, ())
            if len(found) >= least:
                # A run of no time is a run, but no time to plan with.
                return Prediction(max(_median(found), 1.0), len(found), of)
        return None


def _median(runs: Sequence[float]) -> float:
    ordered, half = sorted(runs), len(runs) // 2
    return ordered[half] if len(runs) % 2 else (ordered[half - 1] + ordered[half]) / 2


@functools.lru_cache(maxsize=_GROUPS_KEPT)
def _groups(kind: Kind) -> tuple[tuple[str, int, str], ...]:
    """Words for a group, how many runs it takes, and its key; nearest first."""
    stem = kind.name.rstrip("0123456789").rstrip("-_.") or kind.name
    owner = f"{kind.tenant}\n{kind.user}"
    return (
        ("this user, name and size", 1, f"a\n{owner}\n{stem}\n{kind.devices}"),
        ("this user and name", 1, f"b\n{owner}\n{stem}"),
        ("this user and size", 2, f"c\n{owner}\n{kind.devices}"),
        ("this user", 2, f"d\n{owner}"),
        ("this queue", _QUEUE_LEAST, f"e\n{kind.queue}"),
    )
