"""How long recent jobs ran beside what they planned. Start estimates draw from it."""

from __future__ import annotations

from typing import Final

import msgspec

from tercio.model.job import EndCause, TimeSpec
from tercio.model.snapshot import RunRatios

RAN_THROUGH: Final = (EndCause.SUCCEEDED, EndCause.FAILED, EndCause.TIME_LIMIT)
"""Ends that say how long the work was: nobody else cut it short."""

_KEPT: Final = 400
_LEAST: Final = 20
"""So many must have ended before they count."""


class RunTimes(msgspec.Struct, kw_only=True, eq=False, omit_defaults=True):
    """Run time over planned time of the last jobs, oldest first, and what was made of them."""

    expected: list[float] = []
    limit: list[float] = []
    predicted: list[float] = []
    fresh: int = 0
    published: RunRatios = msgspec.field(default_factory=RunRatios)

    def note(self, time: TimeSpec, run_s: float, predicted_s: float | None = None) -> None:
        """Count a job that ran through; one without any plan or prediction says nothing."""
        planned_s = time.expected_s or time.limit_s or predicted_s
        if planned_s is None:
            return
        kept = self.predicted
        if time.expected_s or time.limit_s:
            kept = self.expected if time.expected_s else self.limit
        kept.append(round(run_s / planned_s, 6))
        del kept[:-_KEPT]
        self.fresh += 1
        if self.fresh * 10 >= len(kept) and len(kept) >= _LEAST:
            self.published = RunRatios(
                expected=_sorted(self.expected),
                limit=_sorted(self.limit),
                predicted=_sorted(self.predicted),
            )
            self.fresh = 0


def _sorted(ratios: list[float]) -> tuple[float, ...]:
    return tuple(sorted(ratios)) if len(ratios) >= _LEAST else ()
