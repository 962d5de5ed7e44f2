"""Where the device time of jobs went: from what the state keeps of attempts to waterfalls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tercio.core.records import Job, Task
from tercio.core.state import State
from tercio.health.goodput import (
    Attempt,
    CheckpointMark,
    Slowness,
    Span,
    Waterfall,
    job_waterfall,
)
from tercio.model.ids import NodeName
from tercio.model.job import EndCause, JobState
from tercio.model.node import Node
from tercio.model.readings import Marks
from tercio.model.spans import AttemptSpan, HeldSpan

# Ends after which the work since the last checkpoint has to be done again. A stop that a job was
# told of in time may have been saved unmarked: it counts only where the job marks checkpoints.
_LOSSES = frozenset(
    {
        EndCause.FAILED,
        EndCause.LAUNCH_FAILED,
        EndCause.NODE_FAILED,
        EndCause.QUARANTINED,
        EndCause.HUNG,
    }
)
_TOLD_STOPS = frozenset({EndCause.PREEMPTED, EndCause.DRAINED, EndCause.REQUEUED, EndCause.IDLE})


def attempt_span(state: State, job: Job, cause: EndCause) -> AttemptSpan:
    """Return what the attempt that just ended held and did."""
    began_s = job.placed_s if job.placed_s is not None else state.now_s
    return AttemptSpan(
        number=job.attempt,
        cause=cause,
        held=_held(state.nodes, job.tasks, began_s, state.now_s),
        running_s=job.started_s,
        stop_ordered_s=job.stop_ordered_s,
        marks=_marks(job.tasks),
        queued_s=_queued_s(job),
        hung_s=job.hang.since_s if job.hang is not None else None,
        slow=job.slow,
        nodes=tuple(dict.fromkeys(task.placement.node for task in job.tasks))
        if cause is EndCause.FAILED
        else (),
    )


def _queued_s(job: Job) -> float:
    if job.placed_s is None:
        return 0.0
    since_s = job.queued_since_s if job.queued_since_s is not None else job.submitted_s
    return max(0.0, job.placed_s - since_s)


def _held(
    nodes: Mapping[NodeName, Node], tasks: Iterable[Task], began_s: float, now_s: float
) -> tuple[HeldSpan, ...]:
    """Return the devices of the tasks; tasks that held alike and were not measured are one."""
    merged: dict[tuple[str, str, float, float], int] = {}
    measured: list[HeldSpan] = []
    for task in tasks:
        start_s = task.joined_s if task.joined_s is not None else began_s
        stop_s = task.ended_s if task.ended_s is not None else now_s
        milli = sum([share.milli for share in task.placement.devices])
        if not milli:
            continue
        node = nodes.get(task.placement.node)
        index = task.placement.devices[0].index
        known = node is not None and index < len(node.spec.devices)
        kind = node.spec.devices[index].type if node is not None and known else "unknown"
        site = node.spec.site if node is not None else ""
        if task.measured is None:
            key = (kind, site, start_s, max(start_s, stop_s))
            merged[key] = merged.get(key, 0) + milli
        else:
            measured.append(
                HeldSpan(
                    type=kind, milli=milli, start_s=start_s, stop_s=max(start_s, stop_s),
                    measured=task.measured, site=site,
                )
            )  # fmt: skip
    alike = [
        HeldSpan(type=kind, milli=milli, start_s=start_s, stop_s=stop_s, site=site)
        for (kind, site, start_s, stop_s), milli in merged.items()
    ]
    return (*alike, *measured)


def _marks(tasks: Iterable[Task]) -> Marks | None:
    found = [task.marks for task in tasks if task.marks is not None]
    if not found:
        return None
    return max(found, key=lambda marks: marks.step_count)


def running_span(nodes: Mapping[NodeName, Node], job: Job, now_s: float) -> AttemptSpan | None:
    """Return the attempt that is under way as if it ended now, None where none is."""
    if not job.live_tasks or job.placed_s is None:
        return None
    return AttemptSpan(
        number=job.attempt,
        cause=EndCause.SUCCEEDED,
        held=_held(nodes, job.tasks, job.placed_s, now_s),
        running_s=job.started_s,
        stop_ordered_s=job.stop_ordered_s,
        marks=_marks(job.tasks),
        queued_s=_queued_s(job),
        hung_s=job.hang.since_s if job.hang is not None else None,
        slow=job.slow,
    )


def waterfall_of(
    job: Job, spans: Iterable[AttemptSpan], *, since_s: float = 0.0, wanted_milli: int = 0
) -> Waterfall:
    """Return where the device time of a job went, of what it held from `since_s` on.

    Args:
        job: the job.
        spans: its attempts, the one under way included.
        since_s: what was held before is left out.
        wanted_milli: devices that it asks for, in thousandths, for the time it queued.
    """
    attempts: list[Attempt] = []
    queued_ms = 0
    for span in spans:
        queued_ms += round(span.queued_s * 1000) * wanted_milli // 1000
        attempts += [_attempt(span, held, since_s) for held in span.held if held.stop_s > since_s]
    is_failed = job.state is JobState.FAILED
    return job_waterfall(attempts, finally_failed=is_failed, queued_ms=queued_ms)


def _attempt(span: AttemptSpan, held: HeldSpan, since_s: float) -> Attempt:
    marks, measured = span.marks, held.measured
    checkpoints = marks.checkpoints if marks is not None else ()
    is_bad = span.cause in _LOSSES or (span.cause in _TOLD_STOPS and bool(checkpoints))
    return Attempt(
        number=span.number,
        milli_devices=held.milli,
        allocated_s=max(held.start_s, since_s),
        released_s=held.stop_s,
        running_s=span.running_s,
        step_marks_s=_steps(marks),
        stop_ordered_s=span.stop_ordered_s,
        checkpoints=tuple(CheckpointMark(start_s=a, end_s=b) for a, b in checkpoints),
        hung=None if span.hung_s is None else Span(start_s=span.hung_s, end_s=held.stop_s),
        slow=tuple(
            Slowness(start_s=s.start_s, end_s=s.end_s or held.stop_s, ratio=s.ratio)
            for s in span.slow
        ),
        ended_badly=is_bad,
        low_utilization=_spans(measured.low) if measured is not None else (),
        telemetry=_spans(measured.seen) if measured is not None else (),
    )


def _steps(marks: Marks | None) -> tuple[float, ...] | None:
    """Return the steps that matter: the first, the last, and both ends of every long gap."""
    if marks is None or marks.first_step_s is None or marks.last_step_s is None:
        return None
    ends = [at_s for gap in marks.gaps for at_s in gap]
    return tuple(dict.fromkeys(sorted([marks.first_step_s, *ends, marks.last_step_s])))


def _spans(pairs: tuple[tuple[float, float], ...]) -> tuple[Span, ...]:
    return tuple(Span(start_s=start_s, end_s=end_s) for start_s, end_s in pairs)


def energy_of(held: HeldSpan, since_s: float) -> tuple[int, str]:
    """Return the energy in millijoules of what was held from `since_s` on, and its source.

    Energy of a span that begins before is taken in proportion to the time that readings cover.
    """
    measured = held.measured
    if measured is None or not measured.energy_source:
        return 0, ""
    covered_s = sum(stop_s - start_s for start_s, stop_s in measured.seen)
    after_s = sum(max(0.0, stop_s - max(start_s, since_s)) for start_s, stop_s in measured.seen)
    if covered_s <= 0 or after_s >= covered_s:
        return measured.energy_mj, measured.energy_source
    return int(measured.energy_mj * after_s / covered_s), measured.energy_source
