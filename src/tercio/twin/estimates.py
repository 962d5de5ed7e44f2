"""How start estimates came out in a replay: all of them, not only the last that a server keeps."""

from __future__ import annotations

from collections.abc import Sequence

from tercio.core.accuracy import start_accuracy
from tercio.core.driver import Step
from tercio.core.told import StartOutcome, StartRecord
from tercio.model.events import AnyEvent
from tercio.model.sharing_views import StartAccuracy
from tercio.twin.spans import Moment


class EstimateKeeper:
    """An observer of a run that tells waiting jobs when they start.

    Attributes:
        outcomes: oldest first.
    """

    def __init__(self) -> None:
        self.outcomes: list[StartOutcome] = []
        self._record = StartRecord()
        self._seen = 0

    def stepped(self, loop: Moment, _: Sequence[AnyEvent], __: Step) -> None:
        """Take what has been settled since; the state keeps the last ones only."""
        self._record = loop.driver.cluster.starts
        fresh = self._record.count - self._seen
        if fresh:
            self.outcomes += self._record.outcomes[-fresh:]
            self._seen = self._record.count

    def accuracy(self) -> StartAccuracy:
        """Return how they came out, as the live server tells it."""
        return start_accuracy(StartRecord(outcomes=self.outcomes, published=self._record.published))
