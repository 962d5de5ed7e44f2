"""Wide draws for the hunt: all that a policy, a node and a job file can say, each now and then.

`draws` are the first, narrow ones, which seeds that once found something keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from tercio.model.grid import GridHour, GridSeries
from tercio.model.ids import JobId, NodeName, QueuePath, SiteName
from tercio.model.job import (
    FLEXIBLE_FRAMEWORKS,
    ArraySpec,
    CheckpointSpec,
    Dependency,
    DependsWhen,
    EndCause,
    Framework,
    Goodput,
    IndexRange,
    JobSpec,
    NodeFilter,
    NotifySpec,
    Repair,
    RetrySpec,
    TaskGroup,
    TimeSpec,
)
from tercio.model.node import DeviceSpec, MigSpec, NodeSpec
from tercio.model.queue import (
    AcrossQueues,
    ElasticPolicy,
    PlacementPolicy,
    Policy,
    PowerBudget,
    Predict,
    PreemptionPolicy,
    QueueOrder,
    QueueSpec,
    WithinQueue,
)
from tercio.model.reservation import Reservation
from tercio.model.resources import DEVICES, NO_DEVICE, Amounts, DeviceRequest, Request
from tercio.model.topology import SliceRequest, TopologyRequest
from tercio.twin.rng import Stream

TYPES: Final = ("H100", "A100")
USERS: Final = ("ana", "bob", "eve")
_GIB: Final = 1024**3
_POWER_W: Final = 700
_PROFILES: Final = ("1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb")
_LOADS: Final = ((1, 2, 3, 4), (1, 2, 4), (2, 4), (1, 3))


def draw_nodes(stream: Stream) -> tuple[NodeSpec, ...]:
    """Three to six nodes of two to eight devices, two to a rack, of one type or of two."""
    devices = stream.choice((2, 4, 8))
    is_mixed, can_be_cut = stream.chance(0.4), stream.chance(0.4)
    return tuple(
        _node(
            number, TYPES[is_mixed and number % 2 == 0], devices,
            mig=MigSpec() if can_be_cut else None,
        )
        for number in range(1, 4 + stream.whole(4))
    )  # fmt: skip


def _node(number: int, kind: str, devices: int, *, mig: MigSpec | None) -> NodeSpec:
    return NodeSpec(
        name=NodeName(f"n{number}"),
        site=SiteName("sim"),
        devices=tuple(
            DeviceSpec(
                type=kind, index=index, vendor="nvidia", memory_bytes=80 * _GIB,
                card_bytes=80 * 10**9, island=index * 2 // devices, power_w=_POWER_W, mig=mig,
            )
            for index in range(devices)
        ),
        cpus_milli=64_000,
        memory_bytes=1024 * _GIB,
        pool=kind,
        labels={"rack": f"r{(number + 1) // 2}"},
    )  # fmt: skip


def draw_policy(stream: Stream, nodes: Sequence[NodeSpec]) -> Policy:
    """Three queues, one below another, with rules and limits of every kind."""
    total = 1000 * sum(len(node.devices) for node in nodes)
    kind = nodes[0].devices[0].type
    of_kind = 1000 * sum(len(node.devices) for node in nodes if node.pool == kind)
    limit: Amounts = {DEVICES: max(1000, total // 2000 * 1000)} if stream.chance(0.3) else {}
    lend: Amounts = {kind: of_kind // 4} if stream.chance(0.2) else {}
    borrow: Amounts = {kind: of_kind // 2} if stream.chance(0.2) else {}
    shape = {stream.choice(("node", "rack")): 1} if stream.chance(0.2) else {}
    lab = QueueSpec(
        guarantee={} if shape else {kind: of_kind // 4}, guarantee_shape=shape, limit=limit,
        user_limit={"running_jobs": 6} if stream.chance(0.5) else {}, borrow_limit=borrow,
        children={"deep": QueueSpec(weight=stream.choice((1, 3)))},
    )  # fmt: skip
    prod = QueueSpec(
        guarantee={kind: of_kind // 2}, weight=2, lend_limit=lend,
        order=stream.choice((QueueOrder.BACKFILL, QueueOrder.STRICT)),
        preemptible=stream.chance(0.8),
    )  # fmt: skip
    return Policy(
        default_queue=QueuePath("prod"),
        half_life_s=stream.choice((0.0, 3600.0)),
        reservation_depth=stream.choice((0, 1, 1, 4, None)),
        max_overtake_s=stream.choice((300.0, 3600.0)),
        fence_after_s=stream.choice((60.0, 300.0)),
        preemption=PreemptionPolicy(
            within_queue=stream.choice((WithinQueue.OFF, WithinQueue.LOWER_PRIORITY)),
            across_queues=stream.choice(tuple(AcrossQueues)),
            grace_s=stream.choice((0.0, 30.0)),
            min_runtime_s=stream.choice((0.0, 120.0)),
            max_evictions_per_job_per_hour=stream.choice((None, 2)),
        ),
        placement=PlacementPolicy(
            pack=stream.choice(("fragmentation", "bestfit", "spread")),
            defragment=stream.chance(0.3),
        ),
        queues={"prod": prod, "lab": lab},
        budgets=_budgets(stream, nodes),
        overcommit=stream.chance(0.2),
        predict=stream.choice(tuple(Predict)),
        elastic=_elastic(stream),
    )


def _budgets(stream: Stream, nodes: Sequence[NodeSpec]) -> tuple[PowerBudget, ...]:
    if not stream.chance(0.2):
        return ()
    full_w = 2 * _POWER_W * len(nodes[0].devices)
    return (PowerBudget(domain="r1", power_w=round(full_w * stream.choice((0.5, 0.8)))),)


def _elastic(stream: Stream) -> ElasticPolicy | None:
    if not stream.chance(0.6):
        return None
    return ElasticPolicy(
        fairness=stream.choice((-0.5, -1.0, 0.5)),
        restart_s=stream.choice((0.0, 30.0, 600.0)),
        period_s=stream.choice((60.0, 300.0)),
        turn_s=stream.choice((None, 120.0, 3600.0)),
    )


def without_limits(policy: Policy) -> Policy:
    """The same policy with nothing in it that could keep a job from ever starting."""

    def opened(queue: QueueSpec) -> QueueSpec:
        children = {name: opened(child) for name, child in queue.children.items()}
        return msgspec.structs.replace(
            queue, limit={}, lend_limit={}, borrow_limit={}, user_limit={}, children=children
        )

    queues = {name: opened(queue) for name, queue in policy.queues.items()}
    return msgspec.structs.replace(policy, queues=queues, budgets=())


def draw_reservation(
    stream: Stream, nodes: Sequence[NodeSpec], number: int, now_s: float
) -> Reservation:
    """Some capacity for somebody, or a maintenance window."""
    name, from_s = f"w{number}", now_s + stream.choice((-60.0, 300.0, 1200.0))
    duration_s = stream.choice((200.0, 1500.0))
    if stream.chance(0.3):
        window = (stream.choice(nodes).name,)
        return Reservation(name=name, from_s=from_s, duration_s=duration_s, nodes=window)
    is_of_queue, is_by_shape = stream.chance(0.5), stream.chance(0.4)
    return Reservation(
        name=name,
        from_s=from_s,
        duration_s=duration_s,
        queue=stream.choice((QueuePath("prod"), QueuePath("lab"))) if is_of_queue else None,
        user=None if is_of_queue else stream.choice(USERS),
        type=stream.choice((None, nodes[0].devices[0].type)),
        devices=0 if is_by_shape else 1 + stream.whole(len(nodes[0].devices)),
        shape={stream.choice(("node", "rack")): 1} if is_by_shape else {},
        every_s=stream.choice((None, 2000.0)),
    )


def draw_prices(stream: Stream, now_s: float) -> GridSeries:
    """Prices and carbon in steps of minutes, from a while ago on, some of them unknown."""
    begin_s, step_s = now_s - stream.choice((0.0, 700.0)), stream.choice((200.0, 900.0))
    return GridSeries(
        hours=tuple(
            GridHour(
                at_s=begin_s + at * step_s,
                price_usd_per_kwh=stream.choice((None, 0.1, 0.3, 0.3, 0.5, -0.1)),
                carbon_g_per_kwh=stream.choice((None, 50.0, 400.0, 400.0)),
            )
            for at in range(1 + stream.whole(20))
        )
    )


def draw_job(
    stream: Stream,
    nodes: Sequence[NodeSpec],
    known: Sequence[JobId],
    windows: Sequence[str],
    *,
    profiled_ratio: float,
) -> JobSpec:
    """A job of any kind; most of them fit the empty cluster."""
    is_profiled = stream.chance(profiled_ratio)
    groups = (_profiled_group(stream),) if is_profiled else _groups(stream, nodes)
    array = ArraySpec(ranges=(IndexRange(start=0, stop=2 + stream.whole(5)),), concurrency=2)
    is_array = stream.chance(0.1) and not is_profiled
    depends = bool(known) and stream.chance(0.1)
    causes = (EndCause.NODE_FAILED, EndCause.FAILED, EndCause.LAUNCH_FAILED)
    is_kept = is_profiled or stream.chance(0.8)
    framework = stream.choice(tuple(Framework)) if stream.chance(0.3) else Framework.PLAIN
    is_flexible = framework in FLEXIBLE_FRAMEWORKS and len(groups) == 1
    return JobSpec(
        name=stream.choice(("train", "tune", "probe")),
        queue=stream.choice(("prod", "lab", "lab/deep")),
        priority=stream.choice((0, 0, 10, -5)),
        preemptible=stream.choice((None, None, True, False)),
        groups=groups,
        topology=TopologyRequest(same="site") if stream.chance(0.05) else None,
        nodes=NodeFilter(exclude=(stream.choice(nodes).name,)) if stream.chance(0.1) else None,
        run="true",
        framework=framework,
        repair=Repair.TASK if stream.chance(0.5) and is_flexible else Repair.GANG,
        array=array if is_array else None,
        time=_times(stream, is_long=is_profiled),
        checkpoint=CheckpointSpec(
            path="/saved" if is_profiled or stream.chance(0.3) else None,
            grace_s=stream.choice((0.0, 30.0)), every_s=stream.choice((None, 60.0)),
        ),
        retry=RetrySpec(
            on=(*causes, EndCause.PREEMPTED) if is_kept else causes, backoff_s=5.0,
            max=stream.choice((1, 5)),
        ),
        depends_on=(
            Dependency(job=stream.choice(known), when=stream.choice(tuple(DependsWhen))),
        ) if depends else (),
        reservation=stream.choice(windows) if windows and stream.chance(0.2) else None,
        goodput=_profiles(stream, nodes) if is_profiled else (),
        speed={"H100": 1.0, "A100": 0.5} if stream.chance(0.1) and not is_profiled else {},
        notify=(NotifySpec(on=("failed", "succeeded"), url="http://sim/told"),)
        if stream.chance(0.1) else (),
    )  # fmt: skip


def _times(stream: Stream, *, is_long: bool) -> TimeSpec:
    """Times; long ones for a job that is to be moved while it runs."""
    return TimeSpec(
        expected_s=stream.choice((300.0, 3000.0) if is_long else (None, 30.0, 120.0, 600.0)),
        limit_s=stream.choice((None, 6000.0) if is_long else (None, 300.0, 1200.0)),
        deadline_s=1_000_000.0 + stream.uniform(1000.0, 9000.0) if stream.chance(0.1) else None,
        earliest_s=1_000_000.0 + stream.uniform(0.0, 4000.0) if stream.chance(0.05) else None,
    )


def _profiled_group(stream: Stream) -> TaskGroup:
    device = DeviceRequest(type=None, vendor="nvidia", count=stream.choice((1, 1, 2)))
    return TaskGroup(tasks=1, tasks_max=4, per_task=_asks(device))


def _profiles(stream: Stream, nodes: Sequence[NodeSpec]) -> tuple[Goodput, ...]:
    """Rates that grow less and less, on each type of the cluster or on the first alone."""
    types = dict.fromkeys(node.pool for node in nodes)
    tasks = stream.choice(_LOADS)
    power = stream.choice((0.4, 0.9))
    return tuple(
        Goodput(
            type=kind, tasks=tasks,
            units_per_s=tuple(stream.choice((1.0, 2.0)) * count**power for count in tasks),
        )
        for kind in list(types)[: stream.choice((1, 2))]
    )  # fmt: skip


def _asks(*devices: DeviceRequest) -> Request:
    return Request(devices=devices, cpus_milli=1000, memory_bytes=_GIB)


def _groups(stream: Stream, nodes: Sequence[NodeSpec]) -> tuple[TaskGroup, ...]:
    kind = stream.whole(20)
    if kind == 0:
        leader = TaskGroup(name="head", per_task=_asks(_devices(stream, nodes)[0]))
        near = TopologyRequest(leader="head")
        return leader, _plain(stream, nodes, name="crew", most=2, topology=near)
    if kind == 1:
        return _plain(stream, nodes, name="a", most=1), _plain(stream, nodes, name="b", most=2)
    if kind in (2, 3):
        parts = tuple(_plain(stream, nodes, name=f"s{at}", most=2) for at in range(2))
        return (TaskGroup(name="all", subgroups=parts, min_subgroups=stream.choice((None, 1))),)
    return (_plain(stream, nodes, name="", most=len(nodes), can_grow=stream.chance(0.25)),)


def _plain(
    stream: Stream, nodes: Sequence[NodeSpec], *, name: str, most: int,
    topology: TopologyRequest | None = None, can_grow: bool = False,
) -> TaskGroup:  # fmt: skip
    """A group of `most` tasks at most."""
    tasks = min(stream.choice((1, 1, 1, 2, 3, most)), most)
    return TaskGroup(
        name=name,
        tasks=tasks,
        tasks_max=tasks + 2 if can_grow else None,
        per_task=_asks(*_devices(stream, nodes)),
        topology=topology or _topology(stream, tasks),
        exclusive=stream.chance(0.05),
    )


def _topology(stream: Stream, tasks: int) -> TopologyRequest | None:
    match stream.whole(12):
        case 0:
            return TopologyRequest(same=stream.choice(("rack", "node", "island")))
        case 1 | 2:
            return TopologyRequest(prefer=stream.choice(("rack", "node")))
        case 3:
            return TopologyRequest(spread=stream.choice(("rack", "node")))
        case 4 if tasks > 1:
            return TopologyRequest(slice=SliceRequest(tasks=2, same="rack"))
        case _:
            return None


def _devices(stream: Stream, nodes: Sequence[NodeSpec]) -> tuple[DeviceRequest, ...]:
    """What a task asks for, in one way or in two."""
    per_node, kind = len(nodes[0].devices), nodes[0].devices[0].type
    match stream.whole(16):
        case 0:
            return (NO_DEVICE,)
        case 1 | 2:
            return (DeviceRequest(type=kind, share_milli=stream.choice((250, 300, 500))),)
        case 3:
            part = DeviceRequest(type=kind, share_memory_bytes=stream.choice((20, 30)) * _GIB)
            return (part,)
        case 4 | 5 if nodes[0].devices[0].mig is not None:
            profile = stream.choice(_PROFILES)
            return (DeviceRequest(type=kind, count=1 + stream.whole(2), mig_profile=profile),)
        case 6:
            return (DeviceRequest(type=kind, count=1, count_max=2),)
        case 7:
            count = stream.choice((1, 2))
            return tuple(DeviceRequest(type=name, count=count) for name in TYPES)
        case _:
            count = stream.choice((1, 1, 2, per_node))
            return (DeviceRequest(type=stream.choice((kind, None)), count=count),)
