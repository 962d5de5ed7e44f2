"""What waiting jobs were told about their start, and how it came out.

The first estimate that is made for a job since it waits comes with a `JobWaited`; when the job
is placed, it is settled. The last outcomes are kept: they correct the next estimates, and say
to people how good estimates are.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tercio.core.records import Job
from tercio.forecast.band import HIGH_QUANTILE, LOW_QUANTILE, factor, score
from tercio.model.ids import QueuePath
from tercio.model.snapshot import StartRatios

KEPT: Final = 400
"""Outcomes kept: over them accuracy is reported."""
_COUNTED: Final = 200
"""The last so many correct the next estimates."""
_PRIOR_WEIGHT: Final = 20.0
_PRIOR: Final = StartRatios()
_FRESH_PART: Final = 20
"""Ratios are made anew after each such part of the outcomes that count."""


class StartOutcome(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """How one estimate came out. Spans are seconds from when it was told.

    Attributes:
        at_s: when the job started.
        queue: where it waited.
        devices: how many it held.
        wait_s: what it waited since.
        low_s, mid_s, high_s: what was told.
        raw_s: low, middle and high before their correction, or None.
    """

    at_s: float
    queue: QueuePath
    devices: int
    wait_s: float
    low_s: float
    mid_s: float
    high_s: float
    raw_s: tuple[float, float, float] | None = None

    @property
    def is_inside(self) -> bool:
        """Whether the job started inside the band that it was told."""
        return self.low_s <= self.wait_s <= self.high_s


class StartRecord(msgspec.Struct, kw_only=True, eq=False, omit_defaults=True):
    """The last outcomes, oldest first, and what the next estimates are corrected by.

    Attributes:
        count: outcomes ever.
        inside: of them, those inside their band.
        error_s: sum of all absolute errors.
    """

    outcomes: list[StartOutcome] = []
    count: int = 0
    inside: int = 0
    error_s: float = 0.0
    fresh: int = 0
    published: StartRatios = msgspec.field(default_factory=StartRatios)

    def settle(self, job: Job, now_s: float) -> None:
        """Count a job that is being placed, if it was told anything."""
        told, job.told = job.told, None
        if told is None:
            return
        start = told.start
        outcome = StartOutcome(
            at_s=now_s,
            queue=job.queue,
            devices=sum(len(task.placement.devices) for task in job.tasks),
            wait_s=now_s - told.at_s,
            low_s=start.low_s - told.at_s,
            mid_s=start.at_s - told.at_s,
            high_s=start.high_s - told.at_s,
            raw_s=_since(told.at_s, start.raw_s),
        )
        self.outcomes.append(outcome)
        del self.outcomes[:-KEPT]
        self.count += 1
        self.inside += outcome.is_inside
        self.error_s += abs(outcome.wait_s - outcome.mid_s)
        self.fresh += 1
        counted = min(len(self.outcomes), _COUNTED)
        if self.fresh * _FRESH_PART >= counted:
            self.published, self.fresh = _ratios(self.outcomes[-_COUNTED:]), 0


def _since(
    told_s: float, raw_s: tuple[float, float, float] | None
) -> tuple[float, float, float] | None:
    if raw_s is None:
        return None
    low_s, mid_s, high_s = raw_s
    return low_s - told_s, mid_s - told_s, high_s - told_s


def _ratios(outcomes: list[StartOutcome]) -> StartRatios:
    scores: tuple[list[float], ...] = ([], [], [])
    for outcome in outcomes:
        for kept, raw_s in zip(scores, outcome.raw_s or (), strict=False):
            kept.append(score(outcome.wait_s, raw_s, _PRIOR.slack_s))
    low, mid, high = (
        # Rounded: the checkpoint and the journal must not depend on the last bit of a logarithm.
        round(factor(kept, part, prior=prior, prior_weight=_PRIOR_WEIGHT), 6)
        for kept, part, prior in zip(
            scores,
            (LOW_QUANTILE, 0.5, HIGH_QUANTILE),
            (_PRIOR.low, _PRIOR.at, _PRIOR.high),
            strict=True,
        )
    )
    return StartRatios(low=low, at=mid, high=high)
