"""What the measurements of `burn` say of a node: wrong results, devices slower than the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

from tercio.collect.burn import Measurement, measure
from tercio.collect.preflight import Check

SLOW_RATIO: Final = 0.9
"""A device of the same node that does less than this share of the median one is slow."""
_KINDS: Final = (
    ("gemm", "matrix product", "TFLOP/s"),
    ("memory", "memory bandwidth", "GB/s"),
    ("all_reduce", "all-reduce", "GB/s"),
)
Measure = Callable[[], tuple[tuple[Measurement, ...], str]]


def load_checks(*, timeout_s: float, run: Measure | None = None) -> tuple[Check, ...]:
    """Return the active checks. Blocks while the GPUs work; `run` stands in for the child."""
    found, why = run() if run is not None else measure(timeout_s=timeout_s)
    skipped = next((each.text for each in found if each.name == "skipped"), None)
    checks: list[Check] = []
    for kind, name, unit in _KINDS:
        own = [each for each in found if each.name == kind]
        if skipped is not None:
            checks.append(Check(name=name, verdict="skipped", text=skipped))
        elif not own and why:
            checks.append(Check(name=name, verdict="problem", text=f"it did not end: {why}"))
        elif not own:
            checks.append(Check(name=name, verdict="skipped", text="one device only"))
        else:
            checks.append(_judged(name, own, unit))
    return tuple(checks)


def _judged(name: str, own: Sequence[Measurement], unit: str) -> Check:
    wrong = [_of(each) for each in own if not each.is_right]
    if wrong:
        text = f"{', '.join(wrong)}: wrong result"
        return Check(name=name, verdict="problem", text=text)
    usual = median(each.value for each in own)
    slow = [each for each in own if each.value < SLOW_RATIO * usual]
    if slow:
        parts = [f"{_of(each)}: {each.value:.1f} of {usual:.1f} {unit}" for each in slow]
        return Check(name=name, verdict="problem", text="; ".join(parts))
    least = min(each.value for each in own)
    return Check(name=name, verdict="ok", text=f"{least:.1f} {unit}, right results")


def _of(each: Measurement) -> str:
    return "all GPUs" if each.device is None else f"GPU {each.device}"
