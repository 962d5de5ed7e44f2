"""The engine of the world: carries orders out as a real one would, with its faults.

It keeps what is physically true: which tasks live on which node, whatever the control plane
believes. A task runs the recorded work of its job; a job gets on while all its tasks run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from tercio.model.effects import (
    AnyEffect,
    LaunchTask,
    Notify,
    ReconfigureDevice,
    RepairNode,
    SignalTask,
    StopTask,
)
from tercio.model.events import (
    DeviceReconfigured,
    EffectAnswered,
    JobCancelRequested,
    NodeRepairEnded,
    TaskExited,
    TaskLaunchFailed,
    TaskStarted,
)
from tercio.model.ids import JobId, NodeName
from tercio.model.node import MigSpec, NodeSpec
from tercio.twin.loop import NEVER_S, Loop
from tercio.twin.progress.course import Pace
from tercio.twin.rng import Stream
from tercio.twin.runs import Run, TaskId, Watch, Work
from tercio.twin.world import World


class Engine:
    """See the module's description.

    Attributes:
        works: progress by job.
        live: tasks that physically run.
        ended: how tasks ended, for those who ask again; only in a world that loses messages.
        down: nodes that do not answer.
        work_of: run time of the job of an order.
        least_of: tasks without which a job does not get on.
        exit_code_of: what a job ends with when its work is done; None: somebody cancels it then.
        held_milli: thousandths of devices that living tasks hold.
    """

    def __init__(
        self,
        loop: Loop,
        world: World,
        *,
        seed: int = 0,
        speeds: Mapping[JobId, Mapping[str, float]] | None = None,
        pace: Pace | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.loop = loop
        self.world = world
        self.watch = watch
        self.epoch = 0
        self.works: dict[JobId, Work] = {}
        self.live: dict[TaskId, LaunchTask] = {}
        self.ended: dict[TaskId, TaskExited] = {}
        self.refused: dict[TaskId, None] = {}
        self.down: dict[NodeName, None] = {}
        self._cuts: dict[tuple[NodeName, int], int] = {}
        self._forms: dict[tuple[NodeName, int], MigSpec] = {}
        self.held_milli = 0
        self.keeps_ends = True
        self.work_of: Callable[[LaunchTask], float] = lambda order: order.duration_s or 60.0
        self.least_of: Callable[[JobId], int] = lambda _: 1
        self.exit_code_of: Callable[[JobId], int | None] = lambda _: 0
        self._speeds = {} if speeds is None else speeds
        self._pace = pace
        self._runs: dict[tuple[JobId, int], Run] = {}
        self._unheard: dict[NodeName, list[TaskExited]] = {}
        self._stream = Stream(seed, "engine")
        self.set_world(world)

    def set_world(self, world: World) -> None:
        """Behave otherwise from now on."""
        self.world = world
        self._is_prompt = not (world.delay_s or world.lost_ratio or world.repeat_ratio)
        self._is_plain = not (
            world.launch_s or world.slow_start_ratio or world.launch_failure_ratio
        )

    # Orders.

    def perform(self, effect: AnyEffect) -> None:
        """Take an order, which may be delayed, lost or doubled on its way."""
        if self._is_prompt:
            self.act(effect)
            return
        world, stream = self.world, self._stream
        if stream.chance(world.lost_ratio):
            return
        delay_s = stream.uniform(0.0, world.delay_s)
        self.loop.at(self.loop.now_s + delay_s, self.act, effect)
        if stream.chance(world.repeat_ratio):
            self.loop.at(self.loop.now_s + 2 * delay_s + 1.0, self.act, effect)

    def act(self, effect: AnyEffect) -> None:
        """Carry an order out."""
        match effect:
            case LaunchTask():
                self._launch(effect)
            case StopTask():
                self._stop(effect)
            case SignalTask():
                self._signal(effect)
                self._answer(effect)
            case Notify():
                self._answer(effect)
            case ReconfigureDevice():
                self._reconfigure(effect)
            case RepairNode():
                self._repair(effect)

    def _repair(self, order: RepairNode) -> None:
        """Mend a node at once: how long repairs take is the world's."""
        self.loop.pending.append(
            NodeRepairEnded(
                at_s=self.loop.now_s, node=order.node, effect_id=order.effect_id,
                succeeded=True, message="",
            )
        )  # fmt: skip

    def _reconfigure(self, order: ReconfigureDevice) -> None:
        """Cut a device as ordered, unless a newer order was seen."""
        where = (order.node, order.index)
        if order.node in self.down or order.epoch < self.epoch:
            return
        if order.number < self._cuts.get(where, 0):
            return
        self._cuts[where] = order.number
        slices = tuple(
            msgspec.structs.replace(part, uuid=f"MIG-{order.index}-{part.profile}-{part.start}")
            for part in order.slices
        )
        form = self._forms[where] = MigSpec(is_on=order.is_on, slices=slices)
        if self.watch is not None:
            self.watch.was_cut(order.node, order.index, form)
        self.loop.pending.append(
            DeviceReconfigured(
                at_s=self.loop.now_s, node=order.node, effect_id=order.effect_id,
                index=order.index, mig=form,
            )
        )  # fmt: skip

    def _answer(self, effect: SignalTask | Notify) -> None:
        event = EffectAnswered(at_s=self.loop.now_s, effect_id=effect.effect_id)
        self.loop.pending.append(event)

    def _launch(self, order: LaunchTask) -> None:
        key = (order.job_id, order.attempt, order.task)
        if order.node in self.down:
            return
        if key in self.ended:
            self.loop.pending.append(self.ended[key])
            return
        if order.epoch < self.epoch or key in self.refused:
            return
        if key in self.live:
            self._say_started(order)
            return
        self._hold(key, order)
        if self._is_plain:
            self._begin(key)
            return
        world, stream = self.world, self._stream
        delay_s = world.launch_s
        if stream.chance(world.slow_start_ratio):
            delay_s += world.slow_start_s
        if stream.chance(world.launch_failure_ratio):
            self.loop.at(self.loop.now_s + delay_s, self._fail_launch, key)
        else:
            self.loop.at(self.loop.now_s + delay_s, self._begin, key)

    def adopt(self, orders: Sequence[LaunchTask], *, is_whole: bool, is_paused: bool) -> None:
        """Take over tasks of an attempt that run already; all of them when `is_whole`."""
        for order in orders:
            self._hold((order.job_id, order.attempt, order.task), order)
        run = self._runs[orders[0].job_id, orders[0].attempt]
        run.waiting.clear()
        run.is_paused = is_paused
        if is_whole:
            self._get_on(run)

    def _hold(self, key: TaskId, order: LaunchTask) -> None:
        self.live[key] = order
        for device in order.devices:
            self.held_milli += device.share.milli
        run = self._runs.get(key[:2])
        if run is None:
            run = self._runs[key[:2]] = self._new_run(order)
        run.orders[order.task] = order
        run.waiting[order.task] = None
        if self.watch is not None:
            self.watch.began(key, order)

    def _new_run(self, order: LaunchTask) -> Run:
        work = self.works.get(order.job_id)
        if work is None:
            work = self.works[order.job_id] = Work(total_s=self.work_of(order))
        if work.done_s >= work.total_s and order.attempt != work.attempt:
            work.done_s = 0.0  # a finished job that was put back runs anew
        work.attempt = order.attempt
        run = Run(order.job_id, order.attempt, work)
        if order.attempt > 1:
            run.overhead_s = self.world.restart_s
        if self._pace is not None:
            run.overhead_s += self._pace.restart_s(order.job_id) or 0.0
        if self.world.failure_ratio and self._stream.chance(self.world.failure_ratio):
            run.fails_at_s = work.done_s + self._stream.unit() * (work.total_s - work.done_s)
        return run

    def _begin(self, key: TaskId) -> None:
        order = self.live.get(key)
        run = self._runs.get(key[:2])
        if order is None or run is None or key[2] not in run.waiting:
            return
        del run.waiting[key[2]]
        if order.node not in self.down:
            self._say_started(order)
        if self._pace is not None and not run.waiting:
            self._stand_still(run, is_lost=False)  # with one more it gets on otherwise
        self._get_on(run)

    def _say_started(self, order: LaunchTask) -> None:
        self.loop.pending.append(
            TaskStarted(
                at_s=self.loop.now_s, job_id=order.job_id, attempt=order.attempt,
                task=order.task, effect_id=order.effect_id,
            )
        )  # fmt: skip

    def _fail_launch(self, key: TaskId) -> None:
        order = self.live.get(key)
        if order is None:
            return
        run = self._runs[key[:2]]
        self._drop(key, order, run)
        self.refused[key] = None
        self._get_on(run)  # the others of an elastic job need not wait for it
        if order.node in self.down:
            return
        event = TaskLaunchFailed(
            at_s=self.loop.now_s, job_id=key[0], attempt=key[1], task=key[2],
            effect_id=order.effect_id, message="the engine refused it", is_retryable=True,
        )  # fmt: skip
        self.loop.pending.append(event)

    # Progress.

    def _get_on(self, run: Run) -> None:
        """Let the work go on when every task runs, and work out when it is done."""
        if run.began_s is not None or run.waiting or run.is_paused or not run.orders:
            return
        count = len(run.orders) - len(run.stopping)
        is_done = run.work.done_s >= run.work.total_s  # a late task has nothing left to do
        if not count or (count < self.least_of(run.job_id) and not is_done):
            return
        run.began_s = self.loop.now_s
        run.version += 1
        work = run.work
        if is_done:
            run.fails_at_s = None
        target_s = work.total_s if run.fails_at_s is None else run.fails_at_s
        if self._pace is not None:
            run.set_course(self._pace, self.loop.now_s)
        rest_s = run.rest_s(target_s, self._speed(run)) + run.overhead_s
        if rest_s != NEVER_S:
            self.loop.at(self.loop.now_s + max(rest_s, 0.0), self._finish, (run, run.version))

    def _speed(self, run: Run) -> float:
        speeds = self._speeds.get(run.job_id) if self._speeds else None
        if not speeds:
            return 1.0
        types = (d.type for order in run.orders.values() for d in order.devices)
        return min((speeds.get(name, 1.0) for name in types), default=1.0)

    def _stand_still(self, run: Run, *, is_lost: bool) -> None:
        """Bank what was done since the work last went on; a fault takes back what is unsaved."""
        if run.began_s is None:
            return
        elapsed_s = self.loop.now_s - run.began_s
        spent_s = min(elapsed_s, run.overhead_s)
        run.overhead_s -= spent_s
        run.began_s = None
        run.version += 1
        work = run.work
        done_s = run.done_after(elapsed_s - spent_s, self._speed(run))
        kept_s = done_s
        if is_lost:
            kept_s = max(run.saved_s(self.world, done_s), min(work.done_s, done_s))
            if self.world.checkpoint_every_s is None:
                kept_s = 0.0
        if done_s != kept_s or spent_s:
            work.lost_device_s += (done_s - kept_s) * run.devices
            work.overhead_device_s += spent_s * run.devices
        work.done_s = kept_s

    def _finish(self, subject: tuple[Run, int]) -> None:
        run, version = subject
        if run.version != version:
            return
        is_failure = run.fails_at_s is not None
        self._stand_still(run, is_lost=is_failure)
        run.fails_at_s = None
        code: int | None = 1
        if not is_failure:
            run.work.done_s = run.work.total_s
            code = self.exit_code_of(run.job_id)
        if code is None:
            self.loop.pending.append(
                JobCancelRequested(at_s=self.loop.now_s, job_id=run.job_id, by="its user")
            )
            return
        for task in list(run.orders):
            key = (run.job_id, run.attempt, task)
            if key in self.live:
                self._end(
                    key,
                    TaskExited(
                        at_s=self.loop.now_s, job_id=run.job_id, attempt=run.attempt, task=task,
                        exit_code=code,
                    ),
                )  # fmt: skip
            if is_failure:
                self._get_on(run)
            if code:
                return

    # What is learned of a job while it runs.

    def set_total(self, job_id: JobId, total_s: float) -> None:
        """Learn how long a job runs in all; one that has run so long already ends now."""
        work = self.works.get(job_id)
        if work is None:
            return
        run = self._runs.get((job_id, work.attempt))
        if run is not None:
            self._stand_still(run, is_lost=False)
        work.total_s = total_s
        if run is not None:
            self._get_on(run)

    def begin_anew(self, job_id: JobId) -> None:
        """Forget what a job that does not run has done so far."""
        work = self.works.get(job_id)
        if work is not None:
            work.done_s = 0.0

    def reaches_s(self, job_id: JobId, work_s: float) -> float:
        """Return when a job will have done so much, or infinity while it stands still."""
        work = self.works.get(job_id)
        run = None if work is None else self._runs.get((job_id, work.attempt))
        if run is None or run.began_s is None:
            return NEVER_S
        return run.began_s + run.overhead_s + (work_s - run.work.done_s) / self._speed(run)

    # Ends.

    def _drop(self, key: TaskId, order: LaunchTask, run: Run) -> None:
        del self.live[key]
        for device in order.devices:
            self.held_milli -= device.share.milli
        run.orders.pop(key[2], None)
        run.waiting.pop(key[2], None)
        run.stopping.pop(key[2], None)
        if not run.orders:
            del self._runs[key[:2]]
        if self.watch is not None:
            self.watch.ended(key)

    def _end(self, key: TaskId, report: TaskExited) -> None:
        order, run = self.live[key], self._runs[key[:2]]
        is_bad = report.exit_code != 0
        if is_bad and key[2] not in run.stopping:
            self._stand_still(run, is_lost=True)
        self._drop(key, order, run)
        if self.keeps_ends:
            self.ended[key] = report
        if order.node in self.down:
            self._unheard.setdefault(order.node, []).append(report)
        elif not (self.world.lost_ratio and self._stream.chance(self.world.lost_ratio)):
            self.loop.pending.append(report)
            if self.world.repeat_ratio and self._stream.chance(self.world.repeat_ratio):
                self.loop.pending.append(report)
        else:
            # The engine is asked for the truth again and again; here, a minute later.
            self.loop.at(self.loop.now_s + 60.0, self._tell_again, report)

    def _tell_again(self, report: TaskExited) -> None:
        self.loop.pending.append(report)

    def _stop(self, order: StopTask) -> None:
        key = (order.job_id, order.attempt, order.task)
        if order.node in self.down or order.epoch < self.epoch:
            return
        if key not in self.live:
            if key not in self.ended:
                self.refused[key] = None
                self.ended[key] = TaskExited(
                    at_s=self.loop.now_s, job_id=key[0], attempt=key[1], task=key[2], is_lost=True
                )
            self.loop.pending.append(self.ended[key])
            return
        run = self._runs[key[:2]]
        if key[2] in run.stopping:
            return
        self._stand_still(run, is_lost=not self.world.keeps_on_stop)
        run.stopping[key[2]] = None
        self._get_on(run)
        stop_s = min(self.world.stop_s, order.grace_s)
        if stop_s <= 0:
            self._stopped(key)
        else:
            self.loop.at(self.loop.now_s + self._stream.uniform(0.0, stop_s), self._stopped, key)

    def _stopped(self, key: TaskId) -> None:
        if key in self.live:
            report = TaskExited(
                at_s=self.loop.now_s, job_id=key[0], attempt=key[1], task=key[2], signal=15
            )
            self._end(key, report)
            run = self._runs.get(key[:2])
            if run is not None:
                self._get_on(run)

    def _signal(self, order: SignalTask) -> None:
        run = self._runs.get((order.job_id, order.attempt))
        if run is None or order.node in self.down:
            return
        if order.signal == "SIGSTOP":
            self._stand_still(run, is_lost=False)
            run.is_paused = True
        elif order.signal == "SIGCONT":
            run.is_paused = False
            self._get_on(run)

    # Nodes.

    def lose(self, node: NodeName, *, is_crash: bool) -> None:
        """A node no longer answers; in a crash its tasks die, else they run on unseen."""
        self.down[node] = None
        if is_crash:
            self.kill_tasks(node)

    def kill_tasks(self, node: NodeName) -> None:
        """End everything on a node, by its own watchdog or by the loss of power."""
        for key, order in list(self.live.items()):
            if order.node == node and key in self.live:
                report = TaskExited(
                    at_s=self.loop.now_s, job_id=key[0], attempt=key[1], task=key[2],
                    is_lost=True,
                )  # fmt: skip
                self._end(key, report)
                run = self._runs.get(key[:2])
                if run is not None:
                    self._get_on(run)

    def as_cut(self, spec: NodeSpec) -> NodeSpec:
        """A node with its devices cut as they are now."""
        forms = self._forms
        if not any((spec.name, device.index) in forms for device in spec.devices):
            return spec
        devices = tuple(
            msgspec.structs.replace(device, mig=forms.get((spec.name, device.index), device.mig))
            for device in spec.devices
        )
        return msgspec.structs.replace(spec, devices=devices)

    def bring_back(self, node: NodeName) -> list[TaskExited]:
        """The node answers again; return the ends that nobody heard of."""
        self.down.pop(node, None)
        return self._unheard.pop(node, [])

    def forget(self, job_id: JobId) -> None:
        """Drop what is kept of a job that is over."""
        self.works.pop(job_id, None)
