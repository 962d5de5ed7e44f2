"""What befalls nodes and running jobs in the hunt beside lost nodes: faults, people, readings.

Everything is drawn from streams of its own, so that a world with ailments is the same world as
the one without them up to the first that befalls it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from tercio.core.records import Job
from tercio.health.machine import CORDONED_STATES
from tercio.health.machine import NodeState as HealthMark
from tercio.model.commands import AnyCommand, MoveNode, ResetBreaker, SetHealthPolicy
from tercio.model.events import (
    FaultCleared,
    FaultFound,
    JobHung,
    JobIdled,
    JobsForgotten,
    LimitMeasured,
    NodeReported,
    PowerCapped,
    RankPaceChanged,
)
from tercio.model.health import SPARE_LABEL, FaultFact, HealthRecord, HealthSettings
from tercio.model.ids import NodeName, SiteName
from tercio.model.job import TERMINAL_JOB_STATES, JobSpec, JobState, NodeFilter, TaskGroup
from tercio.model.node import CONTAINERS_LABEL, NO_CONTAINERS, NodeSpec
from tercio.model.power import CapCurvePoint, DeviceCap, NodeCaps
from tercio.twin.engine import Engine
from tercio.twin.loop import Loop
from tercio.twin.rng import Stream

_GIB: Final = 1024**3
_MATCHES: Final = (
    "device == 'H100'", "pool != 'A100'", "labels['rack'] in ['r1', 'r2']",
    "'old' in labels", "!('old' in labels)", "devices >= 4 || name == 'n1'",
)  # fmt: skip
_FAULTS: Final = (
    ("xid", "79", "fatal", "reboot_node"),
    ("xid", "79", "fatal", "reboot_node"),
    ("xid", "48", "fatal", "reset_gpu"),
    ("xid", "64", "fatal", "inspect_hw"),
    ("sxid", "12028", "fatal", "reset_all_gpus_and_switches"),
    ("xid", "63", "warning", "reset_gpu_when_idle"),
    ("reading", "remap", "warning", "drain_and_reset"),
    ("xid", "94", "error", "restart_app"),
    ("xid", "31", "error", "restart_app"),
    ("xid", "43", "info", "observe"),
    ("job", "straggler", "warning", "inspect_hw"),
)


def draw_conditions(stream: Stream, nodes: Sequence[NodeSpec]) -> tuple[NodeSpec, ...]:
    """The same nodes, some of them spares, old, without containers, or of another site."""
    has_spare = len(nodes) > 3 and stream.chance(0.4)
    has_far = stream.chance(0.25)
    found = []
    for at, node in enumerate(nodes):
        labels = dict(node.labels)
        if stream.chance(0.3):
            labels["old"] = "yes"
        if stream.chance(0.2):
            labels[CONTAINERS_LABEL] = NO_CONTAINERS
        if has_spare and at == len(nodes) - 1:
            labels[SPARE_LABEL] = "true"
        is_far = has_far and at >= len(nodes) // 2
        site = SiteName("far") if is_far else node.site
        found.append(msgspec.structs.replace(node, labels=labels, site=site))
    return tuple(found)


def draw_keys(stream: Stream, spec: JobSpec) -> JobSpec:
    """The same job with some more to say of where it may run."""
    if stream.chance(0.2):
        before = spec.nodes or NodeFilter()
        match = msgspec.structs.replace(before, match=stream.choice(_MATCHES))
        spec = msgspec.structs.replace(spec, nodes=match)
    if stream.chance(0.15):
        spec = msgspec.structs.replace(spec, image="lab/train:1")
    if stream.chance(0.1):
        sites = stream.choice((("far",), ("sim",), ("far", "sim")))
        spec = msgspec.structs.replace(spec, sites=sites)
    if stream.chance(0.15):
        shm_bytes = stream.choice((2, 600)) * _GIB
        groups = tuple(_with_shm(group, shm_bytes) for group in spec.groups)
        spec = msgspec.structs.replace(spec, groups=groups)
    return msgspec.structs.replace(spec, wait_for_capacity=stream.chance(0.1))


def _with_shm(group: TaskGroup, shm_bytes: int) -> TaskGroup:
    if group.subgroups:
        return group
    per_task = msgspec.structs.replace(group.per_task, shm_bytes=shm_bytes)
    return msgspec.structs.replace(group, per_task=per_task)


def draw_settings(stream: Stream) -> HealthSettings:
    """Settings of the health policy; most of them let it act."""
    return {
        "mode": stream.choice(("act", "act", "act", "shadow")),
        "repairs": stream.choice(("command", "command", "person")),
        "drain_budget_min": stream.choice((1, 1, 2, 9)),
        "breaker_min": stream.choice((1, 2, 9)),
        "probation_s": stream.choice((100.0, 300.0, 3000.0)),
        "repair_timeout_s": stream.choice((100.0, 1800.0)),
        "rung_tries": stream.choice((1, 2)),
        "loop_count": stream.choice((1, 5)),
        "hang_restarts": stream.choice((1, 3)),
        "suspects": stream.choice(("observe", "act")),
        "probation_work": stream.choice(("small", "all")),
        "spare_work": stream.choice(("none", "small")),
        "webhook": stream.choice(("", "http://sim/told")),
    }


class Ailments:
    """See the module's description. `ask` gives a command of a person."""

    def __init__(
        self, loop: Loop, engine: Engine, nodes: Sequence[NodeSpec],
        ask: Callable[[AnyCommand], None], *, seed: int,
    ) -> None:  # fmt: skip
        self.loop, self.engine = loop, engine
        self._nodes = {node.name: node for node in nodes}
        self._ask = ask
        self._stream = Stream(seed, "ailments")
        self._told = 0

    def begin(self, until_s: float) -> None:
        """Set the health policy, and let things befall the world until an instant."""
        self._ask(SetHealthPolicy(settings=draw_settings(self._stream)))
        for _ in range(5 + self._stream.whole(15)):
            at_s = self._stream.uniform(self.loop.now_s, until_s)
            self.loop.at(at_s, self._befall, None)

    def _befall(self, _: None) -> None:
        self._stream.choice((
            self._strike, self._strike, self._strike, self._strike, self._clear, self._clear,
            self._move, self._move, self._decree, self._hang, self._hang, self._idle, self._slow,
            self._cap, self._measure, self._sicken, self._forget,
        ))()  # fmt: skip

    def heal(self) -> None:
        """Every fault is over and every node is well, or on a trial that ends by itself."""
        cluster = self.loop.driver.cluster
        for name, faults in cluster.health.faults.items():
            self.loop.pending += [
                FaultCleared(at_s=self.loop.now_s, node=name, fault_id=fault.id)
                for fault in faults
                if fault.cleared_at_s is None
            ]
        for node in cluster.nodes.values():
            if node.caps is not None:
                self.loop.pending.append(PowerCapped(at_s=self.loop.now_s, node=node.name))
        for name in self._nodes:
            self._report(name, {})
        self._ask(ResetBreaker())
        self._ask(SetHealthPolicy(settings={"mode": "shadow"}))
        for name, record in list(cluster.health.records.items()):
            if HealthMark(record.state) in CORDONED_STATES:
                self._ask(MoveNode(node=name, to="probation"))

    # What befalls nodes.

    def _strike(self) -> None:
        """A fault of a device or a node is found, or one that is known is told again."""
        stream, cluster = self._stream, self.loop.driver.cluster
        node = stream.choice(list(self._nodes.values()))
        known = cluster.health.faults.get(node.name, [])
        if known and stream.chance(0.2):
            self._pend(FaultFound(at_s=self.loop.now_s, node=node.name, fault=known[-1]))
            return
        kind, code, severity, action = stream.choice(_FAULTS)
        device = stream.choice((None, *range(len(node.devices))))
        jobs = cluster.jobs_on(node.name)
        self._told += 1
        fault = FaultFact(
            id=f"f{self._told}", at_s=self.loop.now_s - stream.choice((0.0, 30.0)),
            fault_class=kind, code=code, severity=severity, action=action, device=device,
            serial=None if device is None else f"{node.name}/{device}",
            job=stream.choice(jobs) if jobs and stream.chance(0.6) else None,
        )  # fmt: skip
        self._pend(FaultFound(at_s=self.loop.now_s, node=node.name, fault=fault))

    def _clear(self) -> None:
        faults = self.loop.driver.cluster.health.faults
        standing = [
            (name, fault.id) for name, each in faults.items() for fault in each
            if fault.cleared_at_s is None
        ]  # fmt: skip
        if standing:
            name, fault_id = self._stream.choice(standing)
            self._pend(FaultCleared(at_s=self.loop.now_s, node=name, fault_id=fault_id))

    def _move(self) -> None:
        """A person takes a node out, tries it, returns it or retires it."""
        stream, records = self._stream, self.loop.driver.cluster.health.records
        name = stream.choice(list(self._nodes))
        is_out = HealthMark(records.get(name, HealthRecord()).state) in CORDONED_STATES
        moves = (
            MoveNode(node=name, to="probation"), MoveNode(node=name, to="return"),
            MoveNode(node=name, to="retire"),
        ) if is_out else (MoveNode(node=name, to="quarantine"),)  # fmt: skip
        self._ask(stream.choice(moves))

    def _decree(self) -> None:
        if self.loop.driver.cluster.health.breaker_open_s is not None:
            self._ask(ResetBreaker())
        else:
            self._ask(SetHealthPolicy(settings=draw_settings(self._stream)))

    def _sicken(self) -> None:
        """An engine reports that devices of a node are no good, or are good again."""
        stream = self._stream
        name = stream.choice(list(self._nodes))
        count = len(self._nodes[name].devices)
        self._report(name, dict.fromkeys(i for i in range(count) if stream.chance(0.3)))

    def _report(self, name: NodeName, sick: dict[int, None]) -> None:
        if name in self.engine.down or name not in self.loop.driver.cluster.nodes:
            return
        spec = self.engine.as_cut(self._nodes[name])
        devices = tuple(
            msgspec.structs.replace(device, healthy=device.index not in sick)
            for device in spec.devices
        )
        spec = msgspec.structs.replace(spec, devices=devices)
        self._pend(NodeReported(at_s=self.loop.now_s, spec=spec))

    def _cap(self) -> None:
        """Power limits of a node are ordered or given up, and its jobs stopped now and then."""
        stream, cluster = self._stream, self.loop.driver.cluster
        node = cluster.nodes.get(stream.choice(list(self._nodes)))
        if node is None:
            return
        devices = []
        for device in node.spec.devices:
            limit_w = round(device.power_w * stream.choice((0.6, 0.8, 1.0)))
            devices.append(
                DeviceCap(
                    index=device.index, uuid=device.uuid, limit_w=limit_w,
                    ceiling_w=stream.choice((limit_w, device.power_w)),
                    floor_w=round(0.6 * device.power_w), default_w=device.power_w,
                )
            )  # fmt: skip
        self._told += 1
        caps = NodeCaps(revision=self._told, devices=tuple(devices))
        stop = cluster.jobs_on(node.name) if stream.chance(0.2) else ()
        self._pend(
            PowerCapped(
                at_s=self.loop.now_s, node=node.name, reason="a budget", stop=stop,
                caps=caps if stream.chance(0.8) else None,
            )
        )  # fmt: skip

    # What befalls jobs.

    def _running(self) -> Job | None:
        """A job that runs, or None when none does."""
        jobs = self.loop.driver.cluster.jobs.values()
        found = [job for job in jobs if job.state is JobState.RUNNING and job.live_tasks]
        return self._stream.choice(found) if found else None

    def _hang(self) -> None:
        """A job makes no progress, and is stopped or only told of, or it moves again."""
        job, stream, now_s = self._running(), self._stream, self.loop.now_s
        if job is None:
            return
        tasks = tuple(t.placement.task for t in job.live_tasks if stream.chance(0.3))
        self._pend(
            JobHung(
                at_s=now_s, job_id=job.id, attempt=job.attempt, last_progress_s=now_s - 400.0,
                limit_s=300.0, phase="step", tasks=tasks,
                held_by=stream.choice(("", "", "shadow")),
                is_over=job.hang is not None and stream.chance(0.5),
            )
        )  # fmt: skip

    def _idle(self) -> None:
        """A job is warned for being idle; one that was is stopped, or works again."""
        job, stream, now_s = self._running(), self._stream, self.loop.now_s
        if job is None:
            return
        is_known = job.idle is not None
        is_over = is_known and stream.chance(0.5)
        warned = JobIdled(
            at_s=now_s, job_id=job.id, attempt=job.attempt, since_s=now_s - 600.0,
            stop_s=stream.choice((None, now_s + 60.0)), is_over=is_over,
            is_reclaimed=is_known and not is_over,
        )  # fmt: skip
        self._pend(warned)
        if not is_known and stream.chance(0.5):
            self._pend(msgspec.structs.replace(warned, is_reclaimed=True))

    def _slow(self) -> None:
        job, stream = self._running(), self._stream
        if job is None:
            return
        task = stream.choice(job.live_tasks).placement
        self._pend(
            RankPaceChanged(
                at_s=self.loop.now_s, job_id=job.id, attempt=job.attempt, task=task.task,
                node=task.node, ratio=stream.choice((1.0, 1.5)),
            )
        )  # fmt: skip

    def _measure(self) -> None:
        job = self._running()
        if job is not None:
            limit_w = self._stream.choice((500, 700))
            point = CapCurvePoint(limit_w=limit_w, step_s=1.0, step_energy_j=9.0)
            self._pend(
                LimitMeasured(at_s=self.loop.now_s, job_id=job.id, job_class="train", point=point)
            )

    def _forget(self) -> None:
        """A finished job that nobody waits for leaves the state."""
        jobs = self.loop.driver.cluster.jobs.values()
        needed = [
            each.job for job in jobs if job.state not in TERMINAL_JOB_STATES
            for each in job.spec.depends_on
        ]  # fmt: skip
        over = [
            job.id for job in jobs
            if job.state in TERMINAL_JOB_STATES and job.id not in needed
            and job.array is None and job.parent is None
        ]  # fmt: skip
        if over:
            forgotten = (self._stream.choice(over),)
            self._pend(JobsForgotten(at_s=self.loop.now_s, job_ids=forgotten))

    def _pend(self, event: FaultFound | FaultCleared | NodeReported | PowerCapped | JobHung
              | JobIdled | RankPaceChanged | LimitMeasured | JobsForgotten) -> None:  # fmt: skip
        self.loop.pending.append(event)
