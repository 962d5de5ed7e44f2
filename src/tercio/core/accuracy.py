"""How start estimates came out, as people are shown it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Final

from tercio.core.told import StartOutcome, StartRecord
from tercio.model.sharing_views import StartAccuracy, StartAccuracyRow

_SIZES: Final = (("1 device or less", 1), ("2 to 8 devices", 8), ("more than 8", None))


def start_accuracy(record: StartRecord) -> StartAccuracy:
    """Return the accuracy of the last estimates; a group without any is left out."""
    outcomes, ratios = record.outcomes, record.published
    return StartAccuracy(
        rows=tuple(_row(key, group) for key, group in _groups(outcomes) if group),
        since_s=outcomes[0].at_s if outcomes else None,
        low_ratio=ratios.low,
        mid_ratio=ratios.at,
        high_ratio=ratios.high,
    )


def _groups(outcomes: Sequence[StartOutcome]) -> Iterator[tuple[str, list[StartOutcome]]]:
    yield "all", list(outcomes)
    for queue in sorted({outcome.queue for outcome in outcomes}):
        yield f"queue {queue}", [each for each in outcomes if each.queue == queue]
    least = -1
    for words, most in _SIZES:
        top = float("inf") if most is None else most
        yield words, [each for each in outcomes if least < each.devices <= top]
        least = most or 0


def _row(key: str, group: Sequence[StartOutcome]) -> StartAccuracyRow:
    errors_s = [each.wait_s - each.mid_s for each in group]
    early = sum(each.wait_s < each.low_s for each in group)
    inside = sum(each.is_inside for each in group)
    return StartAccuracyRow(
        key=key,
        jobs=len(group),
        wait_s=statistics.median(each.wait_s for each in group),
        error_s=statistics.median(map(abs, errors_s)),
        bias_s=statistics.median(errors_s),
        inside_ratio=inside / len(group),
        early_ratio=early / len(group),
        late_ratio=(len(group) - early - inside) / len(group),
    )
