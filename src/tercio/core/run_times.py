"""How long recent jobs ran beside what they planned. Start estimates draw from it."""

from __future__ import annotations

from typing import Final

import msgspec

from tercio.model.job import EndCause, TimeSpec
from tercio.model.snapshot import LIMIT_CLASSES_S, RunRatios, limit_class

RAN_THROUGH: Final = (EndCause.SUCCEEDED, EndCause.FAILED, EndCause.TIME_LIMIT)
"""Ends that say how long the work was: nobody else cut it short."""

_KEPT: Final = 400
_LEAST: Final = 20
"""So many must have ended before they count."""
_CLASS_LEAST: Final = 8
"""Fewer for one class of limits: the other classes are far worse a guide to it."""


class RunTimes(msgspec.Struct, kw_only=True, eq=False, omit_defaults=True):
    """Run time over planned time of the last jobs, oldest first, and what was made of them."""

    expected: list[float] = []
    limit: list[float] = []
    limit_by: list[list[float]] = []
    predicted: list[float] = []
    fresh: int = 0
    published: RunRatios = msgspec.field(default_factory=RunRatios)

    def note(self, time: TimeSpec, run_s: float, predicted_s: float | None = None) -> None:
        """Count a job that ran through; one without any plan or prediction says nothing."""
        planned_s = time.expected_s or time.limit_s or predicted_s
        if planned_s is None:
            return
        ratio = round(run_s / planned_s, 6)
        if time.expected_s:
            kept = self.expected
        elif time.limit_s:
            kept = self.limit
            self.limit_by = self.limit_by or [[] for _ in range(len(LIMIT_CLASSES_S) + 1)]
            alike = self.limit_by[limit_class(time.limit_s)]
            alike.append(ratio)
            del alike[:-_KEPT]
        else:
            kept = self.predicted
        kept.append(ratio)
        del kept[:-_KEPT]
        self.fresh += 1
        if self.fresh * 10 >= len(kept) and len(kept) >= _LEAST:
            self.published = RunRatios(
                expected=_sorted(self.expected),
                limit=_sorted(self.limit),
                limit_by=tuple(_sorted(alike, least=_CLASS_LEAST) for alike in self.limit_by),
                predicted=_sorted(self.predicted),
            )
            self.fresh = 0


def _sorted(ratios: list[float], *, least: int = _LEAST) -> tuple[float, ...]:
    return tuple(sorted(ratios)) if len(ratios) >= least else ()
