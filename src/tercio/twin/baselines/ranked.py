"""What the baselines share: free whole devices by node, and best-fit placement of gangs.

A baseline knows whole devices and gangs of equal tasks, nothing else: no cores, no shares, no
topology. That is what the simulators of the papers know. It sees each cluster as one pool of
devices of any type, or of the one type a job names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tercio.model.ids import JobId, NodeName
from tercio.model.job import JobSpec
from tercio.model.placement import TaskPlacement
from tercio.model.reasons import Decision, Outcome, Reason
from tercio.model.resources import WHOLE_DEVICE_MILLI, DeviceShare
from tercio.model.snapshot import RunningJob, Snapshot, WaitingJob
from tercio.sched.plan import Start


class Free:
    """Free devices by node, in order of first report. Taking is by best fit."""

    def __init__(self, snapshot: Snapshot, without: Iterable[JobId] = ()) -> None:
        gone = dict.fromkeys(without)
        self._types: dict[NodeName, tuple[str, ...]] = {}
        self._free: dict[NodeName, list[int]] = {}
        for name, node in snapshot.nodes.items():
            self._types[name] = tuple(device.type for device in node.spec.devices)
            foreign = node.spec.foreign_devices
            self._free[name] = (
                [d.index for d in node.spec.devices if d.healthy and d.index not in foreign]
                if node.is_placeable
                else []
            )
        for job in snapshot.running.values():
            if job.job_id not in gone:
                self.hold(job.tasks)

    def hold(self, tasks: Iterable[TaskPlacement]) -> None:
        """Take what tasks hold."""
        for task in tasks:
            free = self._free.get(task.node)
            if free is None:
                continue
            for share in task.devices:
                if share.index in free:
                    free.remove(share.index)

    def give(self, tasks: Iterable[TaskPlacement]) -> None:
        """Give back what tasks hold."""
        for task in tasks:
            free = self._free.get(task.node)
            if free is not None:
                free += [share.index for share in task.devices if share.index not in free]
                free.sort()

    def place(self, spec: JobSpec) -> tuple[TaskPlacement, ...] | None:
        """Take devices for a whole gang, each task on the fullest node it fits; None: no room."""
        placed: list[TaskPlacement] = []
        for at, group in enumerate(spec.groups):
            request = group.per_task.devices[0]
            for _ in range(group.tasks):
                node = self._tightest(request.count, request.type)
                if node is None:
                    self.give(placed)
                    return None
                right = self._right(node, request.type)[: request.count]
                task = TaskPlacement(
                    task=len(placed),
                    node=node,
                    group=at,
                    devices=tuple(
                        DeviceShare(index=index, milli=WHOLE_DEVICE_MILLI) for index in right
                    ),
                )
                self.hold((task,))
                placed.append(task)
        return tuple(placed)

    def _right(self, node: NodeName, type: str | None) -> list[int]:
        free, types = self._free[node], self._types[node]
        return free if type is None else [index for index in free if types[index] == type]

    def _tightest(self, count: int, type: str | None) -> NodeName | None:
        best, best_left = None, 1 << 30
        for node in self._free:
            left = len(self._right(node, type))
            if count <= left < best_left:
                best, best_left = node, left
        return best


def devices_of(spec: JobSpec) -> int:
    """Devices of the whole gang."""
    return sum(group.tasks * group.per_task.devices[0].count for group in spec.groups)


def run_time_s(job: WaitingJob | RunningJob) -> float:
    """How long the job says it runs; without a word, for ever."""
    time = job.spec.time
    return time.expected_s or time.limit_s or float("inf")


def is_ready(job: WaitingJob, now_s: float) -> bool:
    """Whether the job could start now if there were room."""
    is_early = job.not_before_s is not None and job.not_before_s > now_s
    return not (job.is_held or job.blocked_on or is_early)


def told(
    snapshot: Snapshot, starts: Iterable[Start], preempting: Mapping[JobId, None], now_s: float
) -> dict[JobId, Decision]:
    """One decision for every job considered."""
    found: dict[JobId, Decision] = {}
    for start in starts:
        nodes = tuple(dict.fromkeys(task.node for task in start.tasks))
        found[start.job_id] = Decision(
            job=start.job_id, outcome=Outcome.PLACED, reason=Reason.READY,
            message=f"starts on {', '.join(nodes)}", nodes=nodes,
        )  # fmt: skip
    for job_id, job in snapshot.waiting.items():
        if job_id in found:
            continue
        reason, message = Reason.NO_FREE_DEVICES, "not enough devices are free for it"
        if job.is_held:
            reason, message = Reason.HELD, "held"
        elif job.blocked_on:
            reason, message = Reason.DEPENDENCY, f"waits for {job.blocked_on[0]} to end"
        elif not is_ready(job, now_s):
            reason, message = Reason.BACK_OFF, "waits for its back-off"
        elif job_id in preempting:
            reason, message = Reason.PREEMPTING, "waits for others to stop"
        found[job_id] = Decision(
            job=job_id, outcome=Outcome.WAITING, reason=reason, message=message
        )
    return found
