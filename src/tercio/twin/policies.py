"""The policies one can compare with, by name.

Where our own scheduler can express a policy it is data for it; the others are small schedulers
of `twin.baselines` that make plans of the same kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from tercio.core.driver import Scheduler
from tercio.errors import UserError, did_you_mean
from tercio.model.ids import QueuePath
from tercio.model.queue import (
    AcrossQueues,
    ElasticPolicy,
    PlacementPolicy,
    Policy,
    PreemptionPolicy,
    QueueOrder,
    QueueSpec,
    WithinQueue,
    walk_queues,
)
from tercio.sched.cycle import schedule
from tercio.twin.baselines.las import Las
from tercio.twin.baselines.multifactor import Multifactor
from tercio.twin.baselines.srtf import Srtf
from tercio.twin.trace import TraceJob

_ALONE: Final = PreemptionPolicy(
    within_queue=WithinQueue.OFF, across_queues=AcrossQueues.OFF, grace_s=0.0, min_runtime_s=0.0,
    max_evictions_per_job_per_hour=None,
)  # fmt: skip
_DEFAULT: Final = QueuePath("default")


class Discipline(msgspec.Struct, frozen=True, kw_only=True):
    """A policy as the twin runs it.

    Attributes:
        name: of a built-in policy, or of the file.
        policy: for the scheduler.
        scheduler: our own, or a baseline. Made anew for every run, since it may remember.
        queue_of: where a recorded job waits.
        priority_of: its priority.
        knows_run_times: whether jobs say how long they run.
        sets_limits: whether that is their limit too, where none is recorded.
        keeps_sizes: whether the elastic policy chooses the type alone, at the recorded size.
    """

    name: str
    policy: Policy
    scheduler: Callable[[], Scheduler] = lambda: schedule
    queue_of: Callable[[TraceJob], QueuePath] = lambda _: _DEFAULT
    priority_of: Callable[[TraceJob], int] = lambda job: job.priority
    knows_run_times: bool = False
    sets_limits: bool = False
    keeps_sizes: bool = False


def _plain(
    *, order: QueueOrder = QueueOrder.BACKFILL, pack: str = "bestfit", depth: int | None = 1
) -> Policy:
    return Policy(
        half_life_s=0.0,
        reservation_depth=depth,
        preemption=_ALONE,
        placement=PlacementPolicy(pack=pack),
        queues={"default": QueueSpec(order=order)},
    )


def _fifo() -> Discipline:
    """Strict order of submit; nothing passes the head. Best fit."""
    return Discipline(
        name="fifo", policy=_plain(order=QueueOrder.STRICT, depth=0), priority_of=lambda _: 0
    )


def _easy() -> Discipline:
    """Order of submit with EASY backfill (Lifka 1995): one promise, to the head."""
    return Discipline(
        name="easy",
        policy=_plain(),
        priority_of=lambda _: 0,
        knows_run_times=True,
        sets_limits=True,
    )


def _sjf() -> Discipline:
    """Shortest job first with perfect run times; nothing passes the head."""
    return Discipline(
        name="sjf",
        policy=_plain(order=QueueOrder.STRICT, depth=0),
        priority_of=lambda job: -round(job.run_s),
    )


def _fgd() -> Discipline:
    """Order of submit, packing by fragmentation gradient (Weng et al., USENIX ATC 2023)."""
    return Discipline(name="fgd", policy=_plain(pack="fragmentation"), priority_of=lambda _: 0)


def _bestfit() -> Discipline:
    """Order of submit, packing by best fit; later jobs may pass a head that does not fit."""
    return Discipline(name="bestfit", policy=_plain(), priority_of=lambda _: 0)


def _elastic(*, keeps_sizes: bool = False) -> Discipline:
    """Sizes and device types by what jobs gain from them; for jobs with throughput profiles."""
    policy = msgspec.structs.replace(_plain(), elastic=ElasticPolicy())
    name = "elastic-types" if keeps_sizes else "elastic"
    return Discipline(name=name, policy=policy, priority_of=lambda _: 0, keeps_sizes=keeps_sizes)


def _baseline(name: str, make: Callable[[], Scheduler]) -> Discipline:
    return Discipline(
        name=name, policy=_plain(), scheduler=make, priority_of=lambda _: 0, knows_run_times=True
    )


BUILT_IN: Final[Mapping[str, Callable[[], Discipline]]] = {
    "default": lambda: from_policy("default", Policy()),
    "fifo": _fifo,
    "easy": _easy,
    "sjf": _sjf,
    "srtf": lambda: _baseline("srtf", Srtf),
    "las2d": lambda: _baseline("las2d", Las),
    "drf": lambda: Discipline(name="drf", policy=_plain(), priority_of=lambda _: 0),
    "fgd": _fgd,
    "bestfit": _bestfit,
    "elastic": _elastic,
    "elastic-types": lambda: _elastic(keeps_sizes=True),
    "multifactor": lambda: _baseline("multifactor", Multifactor),
}


def built_in(name: str, jobs: tuple[TraceJob, ...] = ()) -> Discipline:
    """Return a built-in policy. `drf` makes a queue for every user of the jobs.

    Raises:
        UserError: no such policy.
    """
    make = BUILT_IN.get(name)
    if make is None:
        hint = did_you_mean(name, BUILT_IN) or f"one of {', '.join(BUILT_IN)}, or a policy file"
        raise UserError(f"no policy is called {name!r}", hint=hint, field="policy")
    found = make()
    return _shared(found, jobs) if name == "drf" else found


def _shared(drf: Discipline, jobs: tuple[TraceJob, ...]) -> Discipline:
    """Dominant resource fairness (Ghodsi et al., NSDI 2011): the smaller dominant share next."""
    names = sorted({_sharer(job) for job in jobs}) or ["default"]
    number = {name: QueuePath(f"u{at}") for at, name in enumerate(names)}
    policy = msgspec.structs.replace(
        drf.policy,
        default_queue=number[names[0]],
        queues={str(number[name]): QueueSpec() for name in names},
    )
    return msgspec.structs.replace(drf, policy=policy, queue_of=lambda job: number[_sharer(job)])


def _sharer(job: TraceJob) -> str:
    return job.user or job.queue or "default"


def from_policy(name: str, policy: Policy) -> Discipline:
    """A policy of the operator's own; a recorded queue that it has is kept, else its default."""
    known = walk_queues(policy)

    def queue_of(job: TraceJob) -> QueuePath:
        path = QueuePath(job.queue)
        return path if path in known and not known[path].children else policy.default_queue

    return Discipline(name=name, policy=policy, queue_of=queue_of)
