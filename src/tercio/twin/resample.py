"""Other months like the recorded one: a block bootstrap of a trace.

Whole days are drawn with replacement and put one after the other, so that what belongs together
within a day stays together (Carlstein, The Use of Subseries Values for Estimating the Variance
of a General Statistic from a Stationary Sequence, Annals of Statistics 14, 1986).
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from tercio.twin.rng import Stream
from tercio.twin.trace import Trace

DAY_S: Final = 86400.0
_FEWEST: Final = 8


def resample(trace: Trace, seed: int, *, block_s: float = DAY_S) -> Trace:
    """Return another workload of about the same length; seed 0 returns the trace itself.

    Args:
        trace: the recorded workload.
        seed: names the draw; equal seeds draw equal workloads.
        block_s: length of a block; shortened where the trace holds fewer than eight of them.
    """
    jobs = trace.jobs
    if seed == 0 or not jobs:
        return trace
    first_s = jobs[0].submit_s
    span_s = jobs[-1].submit_s - first_s
    block_s = min(block_s, span_s / _FEWEST)
    if block_s <= 0:
        return trace
    count = math.ceil(span_s / block_s)
    blocks: list[list[int]] = [[] for _ in range(count)]
    for number, job in enumerate(jobs):
        blocks[min(int((job.submit_s - first_s) / block_s), count - 1)].append(number)
    stream = Stream(seed, "resample")
    drawn = []
    for place in range(count):
        block = stream.whole(count)
        shift_s = (place - block) * block_s
        drawn += [
            msgspec.structs.replace(
                jobs[number],
                id=f"{jobs[number].id}~{place}",
                submit_s=jobs[number].submit_s + shift_s,
            )
            for number in blocks[block]
        ]
    drawn.sort(key=lambda job: job.submit_s)
    return msgspec.structs.replace(trace, jobs=tuple(drawn)) if drawn else trace
