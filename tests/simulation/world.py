"""A small world in virtual time around the real driver: seeded jobs, engines that answer late,
fail, repeat themselves or forget, nodes that come and go, and servers that are killed.

The journal is a list; a kill throws the driver away and builds it again from that list.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable

import msgspec

from tercio.core.cluster import Cluster
from tercio.core.commands import to_events
from tercio.core.driver import Driver, DriverSettings
from tercio.errors import UserError
from tercio.model.commands import (
    AnyCommand,
    CancelJob,
    CordonNode,
    DrainNode,
    HoldJob,
    ReleaseJob,
    RequeueJob,
    ResumeJob,
    SetPolicy,
    SubmitJob,
    SuspendJob,
    UncordonNode,
)
from tercio.model.effects import AnyEffect, LaunchTask, Notify, SignalTask, StopTask
from tercio.model.events import (
    AnyEvent,
    EffectAnswered,
    Entry,
    NodeLost,
    NodeReported,
    PolicyChanged,
    ServerStarted,
    TaskExited,
    TaskLaunchFailed,
    TaskStarted,
)
from tercio.model.identity import Principal, Role
from tercio.model.ids import JobId, NodeName, task_key
from tercio.model.job import (
    ACTIVE_JOB_STATES,
    TERMINAL_JOB_STATES,
    ArraySpec,
    Dependency,
    EndCause,
    IndexRange,
    JobSpec,
    Repair,
    RetrySpec,
    TimeSpec,
)
from tercio.testing import make_job, make_nodes, make_policy, make_queue

ROOT = Principal(user="root", role=Role.ADMIN)
TaskId = tuple[JobId, int, int]


class World:
    """See the module's description. `faults` scales every kind of trouble; 0 is calm."""

    def __init__(
        self, seed: int, *, faults: float = 1.0, jobs: int = 30, is_flexible: bool = False
    ) -> None:
        self.is_flexible = is_flexible
        self.rng = random.Random(seed)
        self.faults = faults
        self.now_s = 1_000_000.0
        self.journal: list[Entry] = []
        self.heap: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.live: dict[TaskId, LaunchTask] = {}
        self.ended: dict[TaskId, TaskExited] = {}
        self.refused: set[TaskId] = set()
        self.down: set[NodeName] = set()
        self.epoch = 0
        self.kills = 0
        self.driver = self._new_driver(Cluster())
        self.specs = {spec.name: spec for spec in make_nodes(4, devices=4, per_rack=2)}
        self.boot()
        self.feed([self._policy()])
        for spec in self.specs.values():
            self.feed([NodeReported(at_s=self.now_s, spec=spec)])
        for _ in range(jobs):
            self.later(self.rng.uniform(0, 3000), self.submit)
        for _ in range(round(jobs * faults)):
            self.later(self.rng.uniform(0, 5000), self.meddle)
        for _ in range(round(6 * faults)):
            self.later(self.rng.uniform(0, 5000), self.lose_node)
            self.later(self.rng.uniform(0, 5000), self.kill)

    def _new_driver(self, cluster: Cluster, seq: int = 0) -> Driver:
        return Driver(cluster, seq=seq, settings=DriverSettings(is_validating=True), seed=7)

    def _policy(self) -> PolicyChanged:
        queues = {
            "prod": make_queue(guarantee={"H100": 8000}, weight=2),
            "lab": make_queue(guarantee={"H100": 4000}, user_limit={"running_jobs": 6}),
        }
        version = self.driver.cluster.policy_version + 1
        return PolicyChanged(
            at_s=self.now_s, version=version, policy=make_policy(queues), by="root"
        )

    # Time.

    def later(self, delay_s: float, do: Callable[[], None]) -> None:
        heapq.heappush(self.heap, (self.now_s + delay_s, next(self.order), do))

    def run(self, until_s: float) -> None:
        """Do everything that is due up to an instant; wake the driver when it asked for it."""
        while True:
            wake_s = self.wake_s if self.wake_s is not None else float("inf")
            at_s = self.heap[0][0] if self.heap else float("inf")
            if min(wake_s, at_s) > until_s:
                break
            if at_s <= wake_s:
                _, _, do = heapq.heappop(self.heap)
                self.now_s = max(self.now_s, at_s)
                do()
            else:
                self.now_s = max(self.now_s, wake_s)
                self.feed([])
        self.now_s = max(self.now_s, until_s)

    # The shell: journal first, effects after.

    def boot(self) -> None:
        self.epoch += 1
        self.feed([ServerStarted(at_s=self.now_s, epoch=self.epoch, version="test")])
        for effect in self.driver.reissue():
            self.perform(effect)

    def feed(self, events: list[AnyEvent]) -> None:
        step = self.driver.step(events, self.now_s)
        assert not step.refused, step.refused
        self.journal.extend(step.entries)
        self.wake_s = step.wake_at_s
        for effect in step.effects:
            self.perform(effect)

    def kill(self) -> None:
        """Kill the server and start it again from the journal, or from a checkpoint in it."""
        self.kills += 1
        cut = self.rng.randrange(len(self.journal) + 1)
        older = self._new_driver(Cluster())
        older.replay(self.journal[:cut])
        self.driver = self._new_driver(Cluster.from_image(older.cluster.image()), seq=older.seq)
        self.driver.replay(self.journal[cut:])
        for key, order in list(self.live.items()):
            job = self.driver.cluster.jobs.get(key[0])
            assert job is not None, f"{order.effect_id} runs and is not in the journal"
        self.boot()
        for key in [k for k in self.ended if self._is_believed_live(k)]:
            self.feed([self.ended[key]])

    def _is_believed_live(self, key: TaskId) -> bool:
        job = self.driver.cluster.jobs.get(key[0])
        if job is None or job.attempt != key[1]:
            return False
        return any(t.placement.task == key[2] for t in job.live_tasks)

    # The engine.

    def perform(self, effect: AnyEffect) -> None:
        if self.chance(0.03):
            return  # lost on the way: a time-out orders it again
        delay_s = self.rng.uniform(0.01, 2.0) if not self.chance(0.02) else 200.0
        self.later(delay_s, lambda: self.act(effect))
        if self.chance(0.03):
            self.later(delay_s + 1.0, lambda: self.act(effect))

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability * self.faults

    def act(self, effect: AnyEffect) -> None:
        match effect:
            case LaunchTask():
                self.launch(effect)
            case StopTask():
                self.stop(effect)
            case SignalTask() | Notify():
                self.feed([EffectAnswered(at_s=self.now_s, effect_id=effect.effect_id)])

    def launch(self, order: LaunchTask) -> None:
        key = (order.job_id, order.attempt, order.task)
        if order.node in self.down:
            return
        if key in self.ended:
            self.feed([self.ended[key]])
            return
        if order.epoch < self.epoch or key in self.refused:
            return
        if key not in self.live and self.chance(0.03):
            self.refused.add(key)
            self.feed(
                [
                    TaskLaunchFailed(
                        at_s=self.now_s, job_id=key[0], attempt=key[1], task=key[2],
                        effect_id=order.effect_id, message="no luck",
                        is_retryable=self.chance(0.5),
                    )
                ]
            )  # fmt: skip
            return
        if key not in self.live:
            self.check_runs_once(key)
            self.live[key] = order
            run_s = order.duration_s if order.duration_s is not None else 60.0
            self.later(self.rng.uniform(0.2, 1.5) * run_s, lambda: self.finish(key))
        self.feed(
            [
                TaskStarted(
                    at_s=self.now_s, job_id=key[0], attempt=key[1], task=key[2],
                    effect_id=order.effect_id,
                )
            ]
        )  # fmt: skip

    def check_runs_once(self, key: TaskId) -> None:
        """No other attempt of the job may have a task alive, on a node that is not fenced."""
        for other in self.live:
            assert other[0] != key[0] or other[1] == key[1], f"{key} starts while {other} runs"

    def finish(self, key: TaskId) -> None:
        if key in self.live:
            bad = self.chance(0.1)
            self.end(key, TaskExited(
                at_s=self.now_s, job_id=key[0], attempt=key[1], task=key[2],
                exit_code=1 if bad else 0,
            ))  # fmt: skip

    def end(self, key: TaskId, report: TaskExited) -> None:
        order = self.live.pop(key)
        self.ended[key] = report
        if order.node not in self.down:
            self.feed([report])
            if self.chance(0.05):
                self.feed([report])

    def stop(self, order: StopTask) -> None:
        key = (order.job_id, order.attempt, order.task)
        if order.node in self.down:
            return
        if key in self.live:
            report = TaskExited(
                at_s=self.now_s, job_id=key[0], attempt=key[1], task=key[2], signal=15
            )
            self.later(
                self.rng.uniform(0, order.grace_s),
                lambda: self.end(key, report) if key in self.live else None,
            )
            return
        if key not in self.ended:
            self.refused.add(key)
            self.ended[key] = TaskExited(
                at_s=self.now_s, job_id=key[0], attempt=key[1], task=key[2], is_lost=True
            )
        self.feed([self.ended[key]])

    # Nodes.

    def lose_node(self) -> None:
        name = NodeName(self.rng.choice(sorted(self.specs)))
        if name in self.down:
            return
        self.down.add(name)
        self.feed([NodeLost(at_s=self.now_s, node=name, reason="no answer")])
        away_s = self.rng.choice([20.0, 1000.0])
        if away_s > self.driver.cluster.policy.fence_after_s:
            self.later(200.0, lambda: self.power_off(name))
        self.later(away_s, lambda: self.return_node(name))

    def power_off(self, name: NodeName) -> None:
        for key, order in list(self.live.items()):
            if order.node == name:
                self.end(key, TaskExited(
                    at_s=self.now_s, job_id=key[0], attempt=key[1], task=key[2], is_lost=True
                ))  # fmt: skip

    def return_node(self, name: NodeName) -> None:
        self.down.discard(name)
        self.feed([NodeReported(at_s=self.now_s, spec=self.specs[name])])
        for key in [k for k in self.ended if self._is_believed_live(k)]:
            self.feed([self.ended[key]])

    # People.

    def submit(self) -> None:
        known = [j for j in self.driver.cluster.jobs if "." not in j]
        spec = self.some_job(known)
        if self.is_flexible and spec.task_count > 1:
            group = msgspec.structs.replace(spec.groups[0], tasks_max=spec.task_count + 2)
            spec = msgspec.structs.replace(
                spec,
                repair=Repair.TASK,
                groups=(group,) if spec.task_count == 4 else spec.groups,
            )
        self.ask(SubmitJob(spec=spec, is_held=self.chance(0.05)))

    def some_job(self, known: list[JobId]) -> JobSpec:
        rng = self.rng
        tasks = rng.choice([1, 1, 1, 2, 4, 6])
        array = ArraySpec(ranges=(IndexRange(start=0, stop=rng.randint(2, 6)),), concurrency=2)
        repair = rng.choice([Repair.GANG, Repair.TASK])
        most = rng.choice([None, tasks + 2]) if tasks < 6 else None
        return make_job(
            f"j{len(known)}",
            tasks=tasks,
            repair=repair,
            group={"tasks_max": most},
            devices=rng.choice([0.5, 1, 1, 2, 4]) if tasks < 4 else 1,
            queue=rng.choice(["prod", "lab"]),
            priority=rng.choice([0, 0, 10]),
            array=array if rng.random() < 0.15 else None,
            time=TimeSpec(
                expected_s=rng.choice([30.0, 120.0, 600.0]),
                limit_s=rng.choice([None, 300.0, 1200.0]),
            ),
            retry=RetrySpec(
                on=(EndCause.NODE_FAILED, EndCause.PREEMPTED, EndCause.FAILED), backoff_s=5.0
            ),
            depends_on=(Dependency(job=rng.choice(known)),) if known and rng.random() < 0.1 else (),
        )

    def meddle(self) -> None:
        jobs = [*self.driver.cluster.jobs]
        if not jobs:
            return
        job, node = self.rng.choice(jobs), NodeName(self.rng.choice(sorted(self.specs)))
        commands: list[AnyCommand] = [
            CancelJob(job_id=job), HoldJob(job_id=job), ReleaseJob(job_id=job),
            RequeueJob(job_id=job), SuspendJob(job_id=job), ResumeJob(job_id=job),
            CordonNode(node=node), DrainNode(node=node), UncordonNode(node=node),
            SetPolicy(policy=self._policy().policy),
        ]  # fmt: skip
        self.ask(self.rng.choice(commands))

    def ask(self, command: AnyCommand) -> None:
        try:
            self.feed(to_events(self.driver.cluster, command, ROOT, self.now_s))
        except UserError:
            return

    def calm(self) -> None:
        """Heal everything: from here on every job must come to its end."""
        self.faults = 0.0
        for name in sorted(self.down):
            self.return_node(name)
        for name in sorted(self.specs):
            self.ask(UncordonNode(node=NodeName(name)))
        for job in list(self.driver.cluster.jobs.values()):
            if job.is_held:
                self.ask(ReleaseJob(job_id=job.id))
            if job.state.value == "suspended":
                self.ask(ResumeJob(job_id=job.id))

    # What must be true.

    def check_replay(self) -> None:
        replayed = self._new_driver(Cluster())
        decoded = [
            msgspec.json.decode(msgspec.json.encode(entry), type=Entry) for entry in self.journal
        ]
        replayed.replay(decoded)
        assert replayed.cluster.state_hash() == self.driver.cluster.state_hash()

    def check_ended(self) -> None:
        for job in self.driver.cluster.jobs.values():
            assert job.state in TERMINAL_JOB_STATES, (job.id, job.state, job.waited_message)
        assert not self.live
        assert not [j for j in self.driver.cluster.jobs.values() if j.state in ACTIVE_JOB_STATES]

    def key_of(self, task: TaskId) -> str:
        return task_key(*task)
