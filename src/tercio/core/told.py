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
_EPISODES_KEPT: Final = 60
_SCORES_KEPT: Final = 32
_FULL_COUNT: Final = 20
"""Episodes from which the prior counts no more."""
_PRIOR: Final = StartRatios()


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


class Episode(msgspec.Struct, kw_only=True, eq=False):
    """Estimates of jobs that waited together: until the one that began it had started.

    Attributes:
        until_s: when that was.
        count: outcomes in all.
        scores: of low, middle and high, of some of them.
    """

    until_s: float
    count: int = 0
    scores: list[tuple[float, float, float]] = []

    def add(self, scores: tuple[float, float, float]) -> None:
        """Count an outcome; past the bound it takes the place of an older one."""
        if len(self.scores) < _SCORES_KEPT:
            self.scores.append(scores)
        else:
            self.scores[self.count % _SCORES_KEPT] = scores
        self.count += 1


class StartRecord(msgspec.Struct, kw_only=True, eq=False, omit_defaults=True):
    """The last outcomes, oldest first, and what the next estimates are corrected by.

    Attributes:
        count: outcomes ever.
        inside: of them, those inside their band.
        error_s: sum of all absolute errors.
        episodes: the last ones, oldest first.
    """

    outcomes: list[StartOutcome] = []
    count: int = 0
    inside: int = 0
    error_s: float = 0.0
    episodes: list[Episode] = []
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
        if outcome.raw_s is not None:
            self._learn(told.at_s, outcome.wait_s, outcome.raw_s)

    def _learn(self, told_s: float, wait_s: float, raw_s: tuple[float, float, float]) -> None:
        """Correct the next estimates, the more seldom the more an episode has said already."""
        if not self.episodes or told_s >= self.episodes[-1].until_s:
            self.episodes.append(Episode(until_s=told_s + wait_s))
            del self.episodes[:-_EPISODES_KEPT]
        episode = self.episodes[-1]
        low, mid, high = (score(wait_s, each_s, _PRIOR.slack_s) for each_s in raw_s)
        episode.add((low, mid, high))
        if episode.count & (episode.count - 1) == 0:  # a power of two
            self.published = _ratios(self.episodes)


def _since(
    told_s: float, raw_s: tuple[float, float, float] | None
) -> tuple[float, float, float] | None:
    if raw_s is None:
        return None
    low_s, mid_s, high_s = raw_s
    return low_s - told_s, mid_s - told_s, high_s - told_s


def _ratios(episodes: list[Episode]) -> StartRatios:
    low, mid, high = (
        # Rounded: the checkpoint and the journal must not depend on the last bit of a logarithm.
        round(
            factor(
                [[scores[side] for scores in episode.scores] for episode in episodes],
                quantile,
                prior=prior,
                full_count=_FULL_COUNT,
            ),
            6,
        )
        for side, (quantile, prior) in enumerate(
            ((LOW_QUANTILE, _PRIOR.low), (0.5, _PRIOR.at), (HIGH_QUANTILE, _PRIOR.high))
        )
    )
    return StartRatios(low=low, at=mid, high=high)
