"""The simulated engine: it keeps the contract of `base.Engine` without a single process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from signal import Signals

import msgspec

from tercio.engines.base import (
    Capabilities,
    Clock,
    Deliver,
    ExecRequest,
    ExecSession,
    LogLine,
    LogQuery,
    Observation,
    TaskRef,
)
from tercio.engines.sim.script import Behaviour, CutFault, NodeFault, NodeFaultKind, SimScript
from tercio.engines.sim.simlog import line_at, line_count, printed
from tercio.engines.sim.simmarks import marked
from tercio.engines.sim.state import SimState, SimTask
from tercio.engines.sim.timeline import Timeline
from tercio.errors import EngineError, UserError
from tercio.model.effects import (
    Effect,
    LaunchTask,
    ReconfigureDevice,
    SignalTask,
    StopTask,
)
from tercio.model.events import (
    DeviceReconfigured,
    NodeFenced,
    NodeLost,
    NodeRemoved,
    NodeReported,
    TaskExited,
    TaskLaunchFailed,
    TaskStarted,
)
from tercio.model.ids import NodeName, SiteName, task_key
from tercio.model.node import MigSpec, NodeSpec

_SIGKILL = int(Signals.SIGKILL)
_NO_PROCESSES = "simulated tasks have no processes"
_CAPABILITIES = Capabilities(
    survives_server=True,
    isolates_devices=False,
    limits_memory=False,
    limits_cpus=False,
    signals=True,
    suspends=True,
    executes=False,
    runs_images=True,
    switches_user=True,
    cuts_devices=True,
    notes=dict.fromkeys(
        ("isolates_devices", "limits_memory", "limits_cpus", "executes", "reads_marks"),
        _NO_PROCESSES,
    ),
)


class SimEngine:
    """Runs tasks on nodes that are only described.

    On a `VirtualClock` nothing happens until `advance`; on a real clock it happens by itself.
    Two engines that share a `SimState` are one set of machines before and after a restart.
    """

    kind = "sim"

    def __init__(
        self,
        *,
        site: SiteName,
        nodes: Sequence[NodeSpec],
        clock: Clock,
        script: SimScript | None = None,
        state: SimState | None = None,
        default_duration_s: float = 60.0,
    ) -> None:
        self.site = site
        self._nodes = {node.name: node for node in nodes}
        self._cuts_left = {id(fault): fault.times for fault in (script or SimScript()).cut_faults}
        self._clock = clock
        self._script = script or SimScript()
        self._state = state or SimState()
        self._default_duration_s = default_duration_s
        for where, mig in self._state.cuts.items():
            name, _, index = where.rpartition("/")
            if NodeName(name) in self._nodes:
                self._put_mig(NodeName(name), int(index), mig)
        self._timeline = Timeline(clock)
        self._deliver: Deliver | None = None
        self._launches: dict[str, asyncio.Lock] = {}

    @property
    def capabilities(self) -> Capabilities:
        """What works here."""
        return _CAPABILITIES

    async def open(self, deliver: Deliver) -> None:
        """Report every node that is there, and go on with what was running."""
        self._deliver = deliver
        now_s = self._clock()
        for node in self._nodes.values():
            if node.name in self._state.lost:
                reason = self._state.lost[node.name]
                self._send(NodeLost(at_s=now_s, node=node.name, reason=reason))
            else:
                self._send(NodeReported(at_s=now_s, spec=node))
        for fault in self._script.node_faults:
            self._timeline.at(now_s + fault.after_s, partial(self.apply_fault, fault))
        for task in self._state.tasks.values():
            self._plan_end(task)
        self._timeline.open()

    async def close(self) -> None:
        """Stop observing; the state keeps what runs."""
        self._deliver = None
        self._timeline.close()

    @property
    def next_s(self) -> float | None:
        """When something happens next, or None."""
        return self._timeline.next_s

    def advance(self, to_s: float) -> None:
        """Move the virtual clock; everything on the way happens, in order."""
        self._timeline.advance(to_s)

    async def adopt(self, known: Sequence[TaskRef]) -> list[TaskRef]:
        """Answer the known tasks that do not run, and return the others that do."""
        for ref in known:
            task = self._state.tasks.get(ref.key)
            if task is None:
                self._send(self._lost(ref, "it is not on this site"))
            elif task.is_ended:
                self._tell_end(task)
        running = [t.ref for t in self._state.tasks.values() if not t.is_ended]
        return [ref for ref in running if ref not in known]

    async def launch(
        self, order: LaunchTask, secrets: Mapping[str, str]
    ) -> TaskStarted | TaskLaunchFailed:
        """Start one task, once; see `base.Engine.launch`."""
        key = task_key(order.job_id, order.attempt, order.task)
        async with self._launches.setdefault(key, asyncio.Lock()):
            if not self._admit(order):
                return self._failed(order, self._stale(order))
            known = self._state.tasks.get(key)
            if known is not None:
                return self._answer_again(order, known)
            if order.node not in self._nodes:
                return self._failed(order, f"there is no node {order.node}")
            missing = [name for name in order.secrets if name not in secrets]
            if missing:
                return self._failed(order, f"no value for secret {', '.join(missing)}")
            try:
                behaviour = self._script.behaviour_of(order)
            except UserError as error:
                return self._failed(order, error.message)
            await self._timeline.sleep(behaviour.launch_s)
            if self._deliver is None:
                raise self._error("launch", "the engine was closed meanwhile")
            if key in self._state.tasks:
                return self._answer_again(order, self._state.tasks[key])
            if behaviour.launch_error:
                retryable = behaviour.is_retryable
                return self._failed(order, behaviour.launch_error, is_retryable=retryable)
            if order.node not in self._nodes or order.node in self._state.lost:
                return self._failed(order, f"node {order.node} is lost", is_retryable=True)
            return self._start(order, behaviour)

    async def stop(self, order: StopTask) -> None:
        """End the task as its behaviour says, at the end of the grace at the latest."""
        if not self._admit(order):
            raise self._error("stop", self._stale(order))
        key = task_key(order.job_id, order.attempt, order.task)
        task = self._state.tasks.get(key)
        if task is None:
            task = SimTask(
                job_id=order.job_id,
                attempt=order.attempt,
                task=order.task,
                node=order.node,
                behaviour=Behaviour(),
                is_ended=True,
                is_lost=True,
                ends_s=self._clock(),
                message="it had not started when it was stopped",
            )
            self._state.tasks[key] = task
        if task.is_ended:
            self._state.save()
            self._tell_end(task)
            return
        behaviour = task.behaviour
        is_killed = behaviour.ignores_stop or behaviour.stop_s > order.grace_s
        delay_s = order.grace_s if is_killed else behaviour.stop_s
        ends_s = self._clock() + delay_s
        if task.ends_s is None or ends_s < task.ends_s:
            task.ends_s = ends_s
            task.exit_code = None
            task.signal = _SIGKILL if is_killed else self._signal(order.signal, "stop")
            task.message = "killed at the end of its grace" if is_killed else ""
        task.is_stopping = True
        self._state.save()
        self._plan_end(task)

    async def signal(self, order: SignalTask) -> None:
        """SIGSTOP and SIGCONT suspend and resume, SIGKILL ends; others change nothing."""
        if not self._admit(order):
            raise self._error("signal", self._stale(order))
        number = self._signal(order.signal, "signal")
        task = self._state.tasks.get(task_key(order.job_id, order.attempt, order.task))
        if task is None or task.is_ended:
            return
        now_s = self._clock()
        if number == Signals.SIGSTOP and task.ends_s is not None and not task.is_stopping:
            task.left_s = task.ends_s - now_s
            task.ends_s = None
        elif number == Signals.SIGCONT and task.ends_s is None:
            task.ends_s = now_s + task.left_s
        elif number == Signals.SIGKILL:
            task.ends_s, task.exit_code, task.signal = now_s, None, number
        self._state.save()
        self._plan_end(task)

    async def reconfigure(self, order: ReconfigureDevice) -> DeviceReconfigured:
        """Cut a device as ordered; see `base.CuttingEngine`."""
        if not self._admit(order):
            return _cut(order, self._clock(), why=self._stale(order))
        where = f"{order.node}/{order.index}"
        fault = self._cut_fault(order)
        await self._timeline.sleep(fault.after_s if fault is not None else 0.0)
        node = self._nodes.get(order.node)
        if self._deliver is None or node is None or order.node in self._state.lost:
            raise self._error("reconfigure", f"node {order.node} is lost", is_retryable=True)
        device = node.devices[order.index] if order.index < len(node.devices) else None
        if device is None or device.mig is None:
            return _cut(order, self._clock(), why=f"device {order.index} cannot be cut")
        if order.number < self._state.cut_numbers.get(where, 0):
            why = "a newer order was given"
            return _cut(order, self._clock(), mig=device.mig, why=why, retry=True)
        if fault is not None and fault.message:
            self._state.cut_numbers[where] = order.number + 1
            return _cut(
                order, self._clock(), mig=device.mig, why=fault.message, retry=fault.is_retryable
            )
        slices = tuple(
            msgspec.structs.replace(
                part, uuid=f"MIG-{order.node}-{order.index}-{part.profile}-{part.start}"
            )
            for part in order.slices
        )
        mig = msgspec.structs.replace(device.mig, is_on=order.is_on, slices=slices)
        self._put_mig(order.node, order.index, mig)
        self._state.cuts[where], self._state.cut_numbers[where] = mig, order.number
        self._state.save()
        return _cut(order, self._clock(), mig=mig)

    def _put_mig(self, name: NodeName, index: int, mig: MigSpec) -> None:
        node = self._nodes[name]
        devices = list(node.devices)
        devices[index] = msgspec.structs.replace(devices[index], mig=mig)
        self._nodes[name] = msgspec.structs.replace(node, devices=tuple(devices))

    def _cut_fault(self, order: ReconfigureDevice) -> CutFault | None:
        """Return the scripted trouble with this order, and count it as used."""
        for fault in self._script.cut_faults:
            if fault.matches(order) and self._cuts_left[id(fault)] > 0:
                self._cuts_left[id(fault)] -= 1
                return fault
        return None

    async def logs(self, task: TaskRef, query: LogQuery) -> AsyncIterator[LogLine]:
        """Yield the synthetic lines of a task."""
        known = self._state.tasks.get(task.key)
        if known is None:
            return
        stop = line_count(known, self._clock())
        start = 0 if query.tail is None else max(0, stop - query.tail)
        while True:
            was_ended = known.is_ended
            stop = line_count(known, self._clock())
            for line in printed(known, start, stop):
                if query.since_s is None or line.at_s >= query.since_s:
                    yield line
            start = max(start, stop)
            if was_ended or not query.is_following or self._deliver is None:
                return
            await self._timeline.sleep(self._until_news(known, start))

    async def marks(self, wanted: Sequence[tuple[TaskRef, int]]) -> list[tuple[str, int]]:
        """Return the synthetic marks; see `base.MarkingEngine`."""
        now_s = self._clock()
        return [marked(self._state.tasks.get(ref.key), offset, now_s) for ref, offset in wanted]

    async def execute(self, task: TaskRef, request: ExecRequest) -> ExecSession:
        """Refuse: there is no process to be beside of."""
        what = f"cannot run {' '.join(request.argv)} in {task.key}"
        raise self._error("execute", f"{what}: {_NO_PROCESSES}")

    async def forget(self, tasks: Sequence[TaskRef]) -> None:
        """Drop ended tasks; unknown ones are no error."""
        for ref in tasks:
            task = self._state.tasks.get(ref.key)
            if task is not None and task.is_ended:
                del self._state.tasks[ref.key]
                self._launches.pop(ref.key, None)
        self._state.save()

    def apply_fault(self, fault: NodeFault) -> None:
        """Let something happen to a node now."""
        name = NodeName(fault.node)
        now_s = self._clock()
        node = self._nodes.get(name)
        if node is None:
            return
        match fault.kind:
            case NodeFaultKind.LOST:
                self._state.lost[name] = fault.reason
                self._send(NodeLost(at_s=now_s, node=name, reason=fault.reason))
            case NodeFaultKind.FENCED:
                self._end_all(name, fault.reason)
                self._send(NodeFenced(at_s=now_s, node=name, reason=fault.reason))
            case NodeFaultKind.RETURNED:
                self._state.lost.pop(name, None)
                self._send(NodeReported(at_s=now_s, spec=node))
                for task in list(self._state.tasks.values()):
                    if task.node == name and task.is_held:
                        self._tell_end(task)
            case NodeFaultKind.REMOVED:
                self._end_all(name, fault.reason)
                del self._nodes[name]
                self._state.lost.pop(name, None)
                self._send(NodeRemoved(at_s=now_s, node=name))
        self._state.save()

    def _start(self, order: LaunchTask, behaviour: Behaviour) -> TaskStarted:
        duration_s = behaviour.duration_s
        if duration_s is None:
            duration_s = order.duration_s
        if duration_s is None:
            duration_s = self._default_duration_s
        now_s = self._clock()
        task = SimTask(
            job_id=order.job_id,
            attempt=order.attempt,
            task=order.task,
            node=order.node,
            behaviour=behaviour,
            started_s=now_s,
            ends_s=now_s + duration_s,
            exit_code=None if behaviour.signal else behaviour.exit_code,
            signal=behaviour.signal,
            is_lost=behaviour.is_lost,
            message=behaviour.message,
        )
        self._state.tasks[task.ref.key] = task
        self._state.save()
        self._plan_end(task)
        return self._started(order, now_s)

    def _end_all(self, node: NodeName, reason: str) -> None:
        for task in list(self._state.tasks.values()):
            if task.node == node and not task.is_ended:
                task.is_lost, task.exit_code, task.signal = True, None, None
                task.message, task.ends_s = reason, self._clock()
                self._end(task)

    def _plan_end(self, task: SimTask) -> None:
        if task.ends_s is not None and not task.is_ended:
            self._timeline.at(task.ends_s, partial(self._end_if_due, task, task.ends_s))

    def _end_if_due(self, task: SimTask, ends_s: float) -> None:
        # A stop or a suspension may have moved the end since this was planned.
        if not task.is_ended and task.ends_s == ends_s:
            self._end(task)

    def _end(self, task: SimTask) -> None:
        task.is_ended = True
        task.is_held = task.node in self._state.lost
        self._state.save()
        if not task.is_held:
            self._tell_end(task)

    def _tell_end(self, task: SimTask) -> None:
        if task.node in self._state.lost:
            task.is_held = True
            return
        task.is_held = False
        exited = TaskExited(
            at_s=task.ends_s if task.ends_s is not None else self._clock(),
            job_id=task.job_id,
            attempt=task.attempt,
            task=task.task,
            exit_code=task.exit_code,
            signal=task.signal,
            is_lost=task.is_lost,
            message=task.message,
        )
        self._send(exited)

    def _until_news(self, task: SimTask, index: int) -> float:
        """Return how long until the next line, or the end when that is sooner."""
        now_s = self._clock()
        line = line_at(task, index)
        instants = [at for at in (line.at_s if line else None, task.ends_s) if at is not None]
        return max(1e-3, min(instants) - now_s) if instants else 1.0

    def _answer_again(self, order: LaunchTask, task: SimTask) -> TaskStarted | TaskLaunchFailed:
        if task.started_s is None:
            return self._failed(order, task.message)
        if task.is_ended:
            self._timeline.at(self._clock(), partial(self._tell_end, task))
        return self._started(order, task.started_s)

    def _admit(self, order: Effect) -> bool:
        self._state.epoch = max(self._state.epoch, order.epoch)
        return order.epoch == self._state.epoch

    def _stale(self, order: Effect) -> str:
        newest = self._state.epoch
        return f"refused an order of server run {order.epoch}: run {newest} is the newest"

    def _send(self, observation: Observation) -> None:
        if self._deliver is not None:
            self._deliver(observation)

    def _signal(self, name: str, operation: str) -> int:
        if name not in Signals.__members__:
            raise self._error(operation, f"unknown signal {name}")
        return Signals[name].value

    def _lost(self, ref: TaskRef, message: str) -> TaskExited:
        return TaskExited(
            at_s=self._clock(),
            job_id=ref.job_id,
            attempt=ref.attempt,
            task=ref.task,
            is_lost=True,
            message=message,
        )

    def _started(self, order: LaunchTask, at_s: float) -> TaskStarted:
        return TaskStarted(
            at_s=at_s,
            job_id=order.job_id,
            attempt=order.attempt,
            task=order.task,
            effect_id=order.effect_id,
            detail="simulated",
        )

    def _failed(
        self, order: LaunchTask, message: str, *, is_retryable: bool = False
    ) -> TaskLaunchFailed:
        return TaskLaunchFailed(
            at_s=self._clock(),
            job_id=order.job_id,
            attempt=order.attempt,
            task=order.task,
            effect_id=order.effect_id,
            message=message,
            is_retryable=is_retryable,
        )

    def _error(self, operation: str, message: str, *, is_retryable: bool = False) -> EngineError:
        return EngineError(message, engine=self.kind, operation=operation, retryable=is_retryable)


def _cut(
    order: ReconfigureDevice,
    at_s: float,
    *,
    mig: MigSpec | None = None,
    why: str = "",
    retry: bool = False,
) -> DeviceReconfigured:
    return DeviceReconfigured(
        at_s=at_s,
        node=order.node,
        effect_id=order.effect_id,
        index=order.index,
        mig=mig,
        is_done=not why,
        message=why,
        is_retryable=retry,
    )
