"""What queues held, were entitled to and waited for, kept in memory for a month.

Three rings of fixed size: an hour in steps of 20 s, a day in steps of 5 min, 30 days in steps of
an hour. A step holds the mean of its samples. 100 queues take about 4 MB. A file keeps the rings
over a restart; it is a convenience, no record: what jobs used is in the journal.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from tercio.model.series_views import QUEUE_AMOUNTS, QueuePast, QueuePastRow
from tercio.model.views import QueueView
from tercio.runtime.clock import Clock
from tercio.runtime.periodic import Periodic

STEPS: Final = ((20.0, 180), (300.0, 288), (3600.0, 720))
"""Seconds of a step and steps kept, of each ring."""
QUEUES_MAX: Final = 512
"""Queues that are kept, in the order of the policy."""
_SAMPLE_S: Final = STEPS[0][0]
_WIDTH: Final = len(QUEUE_AMOUNTS)
_GAP_STEPS: Final = 3
"""Steps without a sample that are a gap; one may be missed by chance."""
Paths = tuple[str, ...]


class Step(NamedTuple):
    """The amounts of all queues in one step, `QUEUE_AMOUNTS` of each, queue by queue."""

    number: int
    paths: Paths
    amounts: array[float]


class _Ring:
    """The steps of one length; the last one still takes samples."""

    def __init__(self, step_s: float, most: int) -> None:
        self.step_s = step_s
        self.steps: deque[Step] = deque(maxlen=most)
        self._samples = 0

    @property
    def reach_s(self) -> float:
        return self.step_s * (self.steps.maxlen or 0)

    def add(self, at_s: float, paths: Paths, amounts: Sequence[float]) -> None:
        number = int(at_s // self.step_s)
        last = self.steps[-1] if self.steps else None
        if last is None or last.number < number or last.paths != paths:
            # A step in which the queues changed goes on with the new ones alone.
            if last is not None and last.number >= number:
                self.steps.pop()
            self.steps.append(Step(number, paths, array("f", amounts)))
            self._samples = 1
            return
        self._samples += 1
        for place, amount in enumerate(amounts):
            last.amounts[place] += (amount - last.amounts[place]) / self._samples


class _RingImage(msgspec.Struct, frozen=True):
    step_s: float
    numbers: tuple[int, ...]
    layouts: tuple[int, ...]
    amounts: tuple[bytes, ...]


class _Image(msgspec.Struct, frozen=True):
    layouts: tuple[Paths, ...]
    rings: tuple[_RingImage, ...]


class QueuePasts:
    """Takes a sample of every queue each 20 s; on the event loop only."""

    def __init__(self, views: Callable[[], Iterable[QueueView]], clock: Clock) -> None:
        self._views = views
        self._clock = clock
        self._rings = [_Ring(step_s, most) for step_s, most in STEPS]
        self._loop = Periodic(
            "queue past", lambda: self.sample(clock.now_s()), pause=self._until_next
        )

    def start(self) -> None:
        """Begin to sample."""
        self._loop.start()

    async def stop(self) -> None:
        """Sample no more."""
        await self._loop.stop()

    async def _until_next(self) -> None:
        await self._clock.sleep_until((self._clock.now_s() // _SAMPLE_S + 1) * _SAMPLE_S)

    def sample(self, at_s: float) -> None:
        """Note what the queues are like now."""
        rows = list(self._views())[:QUEUES_MAX]
        paths = tuple(row.path for row in rows)
        amounts = [amount for row in rows for amount in _amounts(row)]
        for ring in self._rings:
            last = ring.steps[-1].paths if ring.steps else paths
            ring.add(at_s, last if last == paths else paths, amounts)

    def cut(self, wanted: Sequence[str], since_s: float, now_s: float) -> QueuePast:
        """Return the past of some queues since an instant, in the finest steps that reach it."""
        ring = next(
            (r for r in self._rings if now_s - since_s <= r.reach_s + r.step_s), self._rings[-1]
        )
        at_s: list[float] = []
        columns: list[list[float | None]] = [[] for _ in range(len(wanted) * _WIDTH)]
        before: int | None = None
        for step in ring.steps:
            if (step.number + 1) * ring.step_s <= since_s:
                continue
            if before is not None and step.number - before >= _GAP_STEPS:
                at_s.append((before + 1) * ring.step_s)
                for column in columns:
                    column.append(None)
            before = step.number
            at_s.append(step.number * ring.step_s)
            places = {path: place for place, path in enumerate(step.paths)}
            for index, path in enumerate(wanted):
                place = places.get(path)
                for number in range(_WIDTH):
                    amount = None
                    if place is not None:
                        amount = float(f"{step.amounts[place * _WIDTH + number]:.6g}")
                    columns[index * _WIDTH + number].append(amount)
        rows = tuple(
            QueuePastRow(
                path=path,
                **{
                    name: tuple(columns[index * _WIDTH + number])
                    for number, name in enumerate(QUEUE_AMOUNTS)
                },
            )
            for index, path in enumerate(wanted)
        )
        return QueuePast(at_s=tuple(at_s), rows=rows, step_s=ring.step_s)

    def image(self) -> bytes:
        """Return everything, to be kept over a restart."""
        layouts: dict[Paths, int] = {}
        rings = tuple(
            _RingImage(
                ring.step_s,
                tuple(step.number for step in ring.steps),
                tuple(layouts.setdefault(step.paths, len(layouts)) for step in ring.steps),
                tuple(step.amounts.tobytes() for step in ring.steps),
            )
            for ring in self._rings
        )
        return msgspec.msgpack.encode(_Image(tuple(layouts), rings))

    def load(self, image: bytes) -> None:
        """Go on from the rings of an earlier run.

        Raises:
            ValueError: the image makes no sense.
        """
        known = msgspec.msgpack.decode(image, type=_Image)
        found = {ring.step_s: list(_steps(known.layouts, ring)) for ring in known.rings}
        for ring in self._rings:
            ring.steps.extend(found.get(ring.step_s, ()))


def _steps(layouts: Sequence[Paths], ring: _RingImage) -> Iterable[Step]:
    for number, layout, raw in zip(ring.numbers, ring.layouts, ring.amounts, strict=True):
        if layout >= len(layouts):
            raise ValueError("a step names no layout of queues")
        amounts = array("f")
        amounts.frombytes(raw)
        if len(amounts) != len(layouts[layout]) * _WIDTH:
            raise ValueError("a step does not have the amounts of its queues")
        yield Step(number, layouts[layout], amounts)


def _amounts(row: QueueView) -> tuple[float, ...]:
    """Devices of all types together, as `QUEUE_AMOUNTS` names them."""
    return (
        sum(row.used.values()),
        sum(row.entitled.values()),
        sum(row.wanted.values()),
        row.decayed_use,
        float(row.running),
        float(row.waiting),
    )
