"""Twin results by hand, for figures, comparisons and the report."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tercio.twin.result import Course, JobRecord, TwinResult, summarize
from tercio.twin.spans import Span


def record(
    name: str,
    submit_s: float,
    start_s: float | None,
    end_s: float | None,
    *,
    devices: int = 1,
    queue: str = "a",
) -> JobRecord:
    held_s = 0.0 if start_s is None or end_s is None else end_s - start_s
    return JobRecord(
        id=name, queue=queue, user="ana", devices=devices, submit_s=submit_s, run_s=held_s,
        start_s=start_s, end_s=end_s, held_s=held_s, attempts=1, node="n1",
        state="waiting" if end_s is None else "succeeded",
    )  # fmt: skip


def result(
    jobs: Sequence[JobRecord], *, policy: str = "fifo", devices: int = 8, seed: int = 0
) -> TwinResult:
    edges = sorted(
        {t for job in jobs for t in (job.submit_s, job.start_s, job.end_s) if t is not None}
    )
    held = [
        sum(j.devices for j in jobs if j.start_s is not None and j.end_s is not None
            and j.start_s <= t < j.end_s)
        for t in edges
    ]  # fmt: skip
    waiting = [
        sum(j.submit_s <= t and (j.start_s is None or j.start_s > t) for j in jobs) for t in edges
    ]
    course = Course(
        at_s=np.array(edges, np.float64),
        devices_used=np.array(held, np.float64),
        waiting=np.array(waiting, np.int64),
        devices_up=np.full(len(edges), float(devices)),
    )
    return TwinResult(
        policy=policy, source="march.csv", nodes=devices // 4, devices=devices, seed=seed,
        jobs=tuple(jobs), course=course,
        summary=summarize(jobs, course, devices=devices, events=0, faults=0),
        state_hash="0", warnings=(),
    )  # fmt: skip


def spans(jobs: Sequence[JobRecord], node_of: Sequence[int]) -> tuple[Span, ...]:
    return tuple(
        Span(job=i, node=node_of[i], devices=job.devices, start_s=job.start_s, end_s=job.end_s)
        for i, job in enumerate(jobs)
        if job.start_s is not None and job.end_s is not None
    )
