"""What nodes say of themselves, kept in memory: the newest reading of each, and sums per task.

Raw readings never reach the journal. What changes something does, as facts: a fault that was
not known, one that is over, and what a task's devices measured once it has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from tercio.collect.dcgm import Exported
from tercio.collect.fault_table import load_fault_table
from tercio.core.cluster import Cluster
from tercio.core.records import Job
from tercio.health.table import FaultTable
from tercio.model.events import AnyEvent, TaskExited
from tercio.model.health import HealthRecord
from tercio.model.ids import JobId, NodeName, task_key
from tercio.model.readings import DeviceTelemetry, Measured, NodeReading
from tercio.runtime.meters import Meter, MeterImage
from tercio.runtime.series import Rings
from tercio.runtime.spotting import Spotter

STALE_POLLS: Final = 3
"""A reading older than so many polls is absent: a node that stopped reporting looks like one."""


FORGET_EVERY_POLLS: Final = 1000
"""Readings of any node between two looks at what can be dropped."""


class Holder(msgspec.Struct, frozen=True):
    """A task that holds a part of a device."""

    job_id: JobId
    attempt: int
    task: int
    milli: int
    placed_s: float

    @property
    def key(self) -> str:
        """Key of the task."""
        return task_key(self.job_id, self.attempt, self.task)


class Telemetry:
    """Takes readings in; on the event loop only.

    Attributes:
        polls: readings taken in so far.
        rings: the readings of the last hour, thinned out.
    """

    def __init__(
        self,
        *,
        cluster: Callable[[], Cluster],
        deliver: Callable[[AnyEvent], None],
        now: Callable[[], float],
        overrides: str = "",
        poll_s: float,
        keep_s: float = 3600.0,
    ) -> None:
        self._cluster = cluster
        self._deliver = deliver
        self._now = now
        self._overrides = overrides
        self._table: FaultTable | None = None
        self._poll_s = poll_s
        self._keep_s = keep_s
        self._latest: dict[NodeName, tuple[float, NodeReading]] = {}
        self._spotters: dict[NodeName, Spotter] = {}
        self._meters: dict[str, Meter] = {}
        self.polls = 0
        self.rings = Rings(keep_s=keep_s, poll_s=poll_s)

    def take(self, nodes: Sequence[NodeName], reading: NodeReading) -> int:
        """Take the reading of a machine that is one node, or several; return the faults found."""
        self.polls += 1
        now_s = self._now()
        if self.polls % FORGET_EVERY_POLLS == 0:
            self._forget(now_s)
        # The node's clock may be off: what orders things here is ours.
        reading = msgspec.structs.replace(reading, at_s=now_s)
        spotter = self._spotters.get(nodes[0])
        if spotter is None:
            # The table is read when the first node reports: a server without any needs none.
            self._table = self._table or load_fault_table(self._overrides)
            spotter = self._spotters[nodes[0]] = Spotter(nodes[0], self._table)
        events = spotter.spot(self._cluster(), nodes, reading)
        for event in events:
            self._deliver(event)
        # Its lines were judged: they are not kept.
        kept = msgspec.structs.replace(reading, lines=())
        for name in nodes:
            before = self._latest.get(name)
            self._latest[name] = (now_s, kept)
            self._meter(name, before[1] if before else None, reading)
            self.rings.add(name, now_s, self.devices(name), known=self._cluster().nodes)
        return len(events)

    def image(self) -> bytes:
        """Return the sums of running tasks, to be kept over a restart."""
        return msgspec.msgpack.encode({key: m.image() for key, m in self._meters.items()})

    def load(self, image: bytes) -> None:
        """Go on from the sums of an earlier run.

        Raises:
            ValueError: the image makes no sense.
        """
        known = msgspec.msgpack.decode(image, type=dict[str, MeterImage])
        self._meters = {key: Meter.from_image(each) for key, each in known.items()}

    def _forget(self, now_s: float) -> None:
        """Drop what is of nodes gone or silent, and of tasks whose end was never told."""
        cluster = self._cluster()
        self._latest = {
            name: kept
            for name, kept in self._latest.items()
            if name in cluster.nodes and now_s - kept[0] <= self._keep_s
        }
        self._spotters = {n: s for n, s in self._spotters.items() if n in cluster.nodes}
        live = {
            task_key(job_id, cluster.jobs[job_id].attempt, task.placement.task): None
            for job_id in cluster.snapshot().running
            for task in cluster.jobs[job_id].live_tasks
        }
        self._meters = {key: meter for key, meter in self._meters.items() if key in live}

    def latest(self, node: NodeName) -> NodeReading | None:
        """Return the newest reading of a node; None for none, and for one that is too old."""
        kept = self._latest.get(node)
        if kept is None or self._now() - kept[0] > STALE_POLLS * self._poll_s:
            return None
        return kept[1]

    def devices(self, node: NodeName) -> Mapping[int, DeviceTelemetry]:
        """Return what the devices of a node say now, by their position on the node."""
        reading = self.latest(node)
        known = self._cluster().nodes.get(node)
        if reading is None or known is None:
            return {}
        by_uuid = {device.uuid: device for device in reading.devices if device.uuid}
        return {
            spec.index: by_uuid[spec.uuid] for spec in known.spec.devices if spec.uuid in by_uuid
        }

    def exported(self) -> Iterator[Exported]:
        """Yield every node with a fresh reading, as it is exported."""
        cluster = self._cluster()
        for name in cluster.nodes:
            reading = self.latest(name)
            if reading is None:
                continue
            holders = {}
            for index, held in holders_of(cluster, name).items():
                job = cluster.jobs[held[0].job_id]
                if len(held) == 1:
                    holders[index] = _labels(job)
            slices = {
                uuid: _labels(cluster.jobs[job_id])
                for uuid, job_id in slice_holders(cluster, name).items()
            }
            xids = {
                fault.device: int(fault.code)
                for fault in cluster.health.faults.get(name, ())
                if fault.fault_class == "xid" and fault.device is not None and fault.code.isdigit()
            }
            yield Exported(
                hostname=name,
                reading=reading,
                devices=self.devices(name),
                holders=holders,
                slice_holders=slices,
                last_xid=xids,
                health=cluster.health.records.get(name, HealthRecord()).state,
            )

    def measured(self, job_id: JobId, attempt: int, task: int) -> Measured | None:
        """Return what the devices of a task measured up to now."""
        meter = self._meters.get(task_key(job_id, attempt, task))
        return None if meter is None else meter.measured()

    def ended(self, event: TaskExited) -> TaskExited:
        """Return the end of a task with what its devices measured, and forget that."""
        meter = self._meters.pop(task_key(event.job_id, event.attempt, event.task), None)
        if meter is None:
            return event
        return msgspec.structs.replace(event, measured=meter.measured())

    def _meter(self, name: NodeName, before: NodeReading | None, now: NodeReading) -> None:
        """Credit what passed between two readings to the tasks that held the devices."""
        if before is None or now.at_s - before.at_s > STALE_POLLS * self._poll_s:
            return
        node = self._cluster().nodes.get(name)
        if node is None:
            return
        index_of = {spec.uuid: spec.index for spec in node.spec.devices if spec.uuid}
        old = {device.uuid: device for device in before.devices}
        holders = holders_of(self._cluster(), name)
        held: dict[str, list[tuple[Holder, DeviceTelemetry]]] = {}
        for device in now.devices:
            for holder in holders.get(index_of.get(device.uuid, -1), ()):
                held.setdefault(holder.key, []).append((holder, device))
        for key, parts in held.items():
            start_s = max(before.at_s, parts[0][0].placed_s)
            if start_s >= now.at_s:
                continue
            meter = self._meters.setdefault(key, Meter())
            for holder, device in parts:
                meter.add_energy(
                    old.get(device.uuid), device, milli=holder.milli,
                    start_s=start_s, before_s=before.at_s, now_s=now.at_s,
                )  # fmt: skip
            meter.add_span(start_s, now.at_s, [d.utilization_ratio for _, d in parts])


def holders_of(cluster: Cluster, name: NodeName) -> dict[int, list[Holder]]:
    """Return the tasks that hold each device of a node, by its position."""
    found: dict[int, list[Holder]] = {}
    for index, holder in _holdings(cluster, name):
        found.setdefault(index, []).append(holder)
    return found


def jobs_by_uuid(cluster: Cluster, names: Sequence[NodeName]) -> dict[str, tuple[str, ...]]:
    """Return the jobs on each device and MIG slice in use of some nodes, by its UUID."""
    found: dict[str, tuple[str, ...]] = {}
    for name in names:
        devices = cluster.nodes[name].spec.devices if name in cluster.nodes else ()
        for index, held in holders_of(cluster, name).items():
            if index < len(devices) and devices[index].uuid:
                found[devices[index].uuid] = tuple(dict.fromkeys(h.job_id for h in held))
        found |= {uuid: (job_id,) for uuid, job_id in slice_holders(cluster, name).items()}
    return found


def slice_holders(cluster: Cluster, name: NodeName) -> dict[str, JobId]:
    """Return the job of each MIG slice in use of a node, by the UUID of the slice."""
    devices = cluster.nodes[name].spec.devices if name in cluster.nodes else ()
    uuids = {
        (device.index, part.start): part.uuid
        for device in devices
        if device.mig is not None
        for part in device.mig.slices
        if part.uuid
    }
    return {
        uuids[share.index, share.mig_start]: job_id
        for job_id in (cluster.jobs_on(name) if uuids else ())
        for task in cluster.jobs[job_id].live_tasks
        if task.placement.node == name
        for share in task.placement.devices
        if share.mig_start is not None and (share.index, share.mig_start) in uuids
    }


def _labels(job: Job) -> tuple[str, str, str]:
    return (str(job.id), job.user, str(job.queue))


def _holdings(cluster: Cluster, name: NodeName) -> Iterator[tuple[int, Holder]]:
    for job_id in cluster.jobs_on(name):
        job = cluster.jobs[job_id]
        for task in job.live_tasks:
            if task.placement.node != name:
                continue
            placed_s = task.joined_s if task.joined_s is not None else (job.placed_s or 0.0)
            for share in task.placement.devices:
                number = task.placement.task
                yield share.index, Holder(job_id, job.attempt, number, share.milli, placed_s)
