"""Follows running jobs by the marks of their tasks and by their devices.

What it finds becomes facts for the core: a task that is slower than its peers, a job that stands
still. The core stops what hangs, if the health policy acts; here it is only found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from tercio.core.cluster import Cluster
from tercio.core.healing import policy_of
from tercio.core.records import Job, Task
from tercio.engines.base import Engine, MarkingEngine, TaskRef
from tercio.errors import EngineError
from tercio.health.hang import DeviceReading, HangRule, is_spin_wait
from tercio.health.marks import parse_mark
from tercio.health.policy import HealthPolicy, HeldBy, Mode, Suspects
from tercio.health.progress import Hang, JobProgress
from tercio.health.readings import HW_SLOWDOWN_MASK
from tercio.health.straggler import Straggler, StragglerRule, is_worth_a_restart
from tercio.model.events import AnyEvent, FaultCleared, FaultFound, JobHung, RankPaceChanged
from tercio.model.health import FaultFact
from tercio.model.ids import JobId, NodeName, SiteName
from tercio.model.job import JobState
from tercio.model.readings import DeviceTelemetry
from tercio.model.resources import WHOLE_DEVICE_MILLI
from tercio.runtime.idling import IdleWatch
from tercio.runtime.periodic import Periodic, every
from tercio.runtime.telemetry import Telemetry

_SW_THERMAL_MASK: Final = 0x20
_SLOW_CLOCK_RATIO: Final = 0.95
_IDLE_POWER_RATIO: Final = 0.2
"""Most of its limit that a device draws at idle (H100: 80 of 700 W), where it was not seen idle."""
_JOB_FAULT: Final = "job"
_NO_MARKS: Final = "no_marks"
_TAKE_OUT: Final = "inspect_hw"
RESTART_S: Final = 600.0
"""What a restart costs a job of which it is not known."""
ENDED_KEPT: Final = 32
"""Attempts whose steps can still be looked at after their end."""


class _Said(NamedTuple):
    """What a job says of the node of one of its tasks."""

    code: str
    meaning: str
    evidence: str
    action: str = "observe"


class _Followed:
    """One attempt under way."""

    __slots__ = (
        "faults", "hang_told", "moved", "offsets", "progress", "roles", "slow_from_s", "slow_told",
        "spins_from_s",
    )  # fmt: skip

    def __init__(self) -> None:
        self.progress: JobProgress | None = None
        self.roles: dict[int, str] = {}
        self.offsets: dict[int, int] = {}
        self.hang_told: str | None = None
        self.slow_told: dict[int, float] = {}
        self.slow_from_s: dict[int, float] = {}
        self.moved: dict[int, None] = {}
        self.faults: dict[str, NodeName] = {}
        self.spins_from_s: float | None = None


class Progress:
    """See the module's description; on the event loop only."""

    def __init__(
        self,
        *,
        cluster: Callable[[], Cluster],
        engines: Mapping[SiteName, Engine],
        telemetry: Telemetry,
        deliver: Callable[[AnyEvent], None],
        now: Callable[[], float],
        poll_s: float = 10.0,
    ) -> None:
        self._cluster = cluster
        self._engines = engines
        self._telemetry = telemetry
        self._deliver = deliver
        self._now = now
        self._idle = IdleWatch(cluster, deliver)
        self._loop = Periodic("following", self.look, pause=every(poll_s))
        self._followed: dict[tuple[JobId, int], _Followed] = {}
        self._left_open: dict[str, NodeName] | None = None
        self._ended: dict[tuple[JobId, int], JobProgress] = {}

    def progress_of(self, job_id: JobId, attempt: int) -> JobProgress | None:
        """Return what the marks of an attempt tell; None for one that is not followed."""
        followed = self._followed.get((job_id, attempt))
        found = followed.progress if followed is not None else None
        return found or self._ended.get((job_id, attempt))

    def start(self) -> None:
        """Begin to look again and again."""
        self._loop.start()

    async def stop(self) -> None:
        """Look no more."""
        await self._loop.stop()

    def steps_of(self, job_id: JobId, attempt: int) -> tuple[int, float] | None:
        """Return how many steps an attempt marked and when the last was; None before the first."""
        followed = self._followed.get((job_id, attempt))
        if followed is None or followed.progress is None or not followed.progress.steps:
            return None
        return followed.progress.steps, followed.progress.last_step_s

    async def look(self) -> None:
        """Look at every running job once, and tell what changed."""
        cluster = self._cluster()
        policy = policy_of(cluster.health.settings)
        jobs = [cluster.jobs[job_id] for job_id in cluster.snapshot().running]
        running = {(job.id, job.attempt): job for job in jobs if job.live_tasks}
        self._let_go(running)
        self._idle.forget(list(running))
        for key, job in running.items():
            followed = self._followed.setdefault(key, _Followed())
            is_heard = await self._read(job, followed, policy)
            assert followed.progress is not None
            if not is_heard:
                # A silent site is no silent job: what it marked meanwhile is read later.
                followed.progress.pause(self._now())
                continue
            self._idle.look(
                job,
                self._all_devices(job),
                step_s=followed.progress.last_progress_s,
                policy=policy,
                now_s=self._now(),
            )
            if job.state is not JobState.RUNNING:
                followed.progress.pause(self._now())
                followed.spins_from_s = None
                continue
            self._judge_pace(job, followed, policy)
            self._judge_hang(job, followed, policy)

    def _let_go(self, running: Mapping[tuple[JobId, int], Job]) -> None:
        """Forget attempts that have ended; what they said of nodes is over."""
        if self._left_open is None:
            self._left_open = _open_faults(self._cluster())
        for key in [key for key in self._followed if key not in running]:
            followed = self._followed.pop(key)
            for fault_id, node in followed.faults.items():
                self._clear(fault_id, node)
            if followed.progress is not None and followed.progress.has_marks:
                self._ended[key] = followed.progress
                while len(self._ended) > ENDED_KEPT:
                    del self._ended[next(iter(self._ended))]
        ids = {f"{job_id}/{attempt}" for job_id, attempt in running}
        for fault_id, node in list(self._left_open.items()):
            # Of an earlier run of the server; those of attempts that go on are told again.
            if fault_id.partition("/job/")[2].rpartition("/")[0].rpartition("/")[0] not in ids:
                self._clear(fault_id, node)
                del self._left_open[fault_id]

    async def _read(self, job: Job, followed: _Followed, policy: HealthPolicy) -> bool:
        """Take the new marks of all tasks of a job; return whether every site answered."""
        tasks = {task.placement.task: task for task in job.live_tasks}
        roles = {t.placement.rank: str(t.placement.group) for t in tasks.values()}
        if followed.progress is None or roles != followed.roles:
            # Members came or went: who is compared with whom begins anew.
            began_s = self._now() if followed.progress else (job.started_s or self._now())
            ratio = policy.straggler_ratio or float("inf")
            rule = StragglerRule(ratio=ratio)
            followed.progress = JobProgress(roles, started_s=began_s, rule=rule)
            followed.roles = roles
        by_site: dict[SiteName, list[int]] = {}
        nodes = self._cluster().nodes
        for number, task in tasks.items():
            by_site.setdefault(nodes[task.placement.node].spec.site, []).append(number)
        for site, numbers in by_site.items():
            engine = self._engines.get(site)
            if not isinstance(engine, MarkingEngine):
                continue
            wanted = [(_ref(job, tasks[n]), followed.offsets.get(n, 0)) for n in numbers]
            try:
                texts = await engine.marks(wanted)
            except EngineError:
                # The engine itself says that its site is silent.
                return False
            marks = {}
            for number, (text, offset) in zip(numbers, texts, strict=True):
                followed.offsets[number] = offset
                found = [mark for line in text.splitlines() if (mark := parse_mark(line))]
                marks[tasks[number].placement.rank] = found
            followed.progress.note(marks)
        return True

    # Pace.

    def _judge_pace(self, job: Job, followed: _Followed, policy: HealthPolicy) -> None:
        assert followed.progress is not None
        slow = followed.progress.slow
        by_rank = {task.placement.rank: task for task in job.live_tasks}
        for rank in [rank for rank in followed.slow_told if rank not in slow]:
            del followed.slow_told[rank]
            followed.moved.pop(rank, None)
            if rank in by_rank:
                self._tell_pace(job, followed, by_rank[rank], None)
        for rank, found in slow.items():
            if rank not in followed.slow_told and rank in by_rank:
                followed.slow_told[rank] = found.ratio
                followed.slow_from_s[rank] = self._now()
                self._tell_pace(job, followed, by_rank[rank], found)
            if rank in by_rank and _acts_on_suspects(policy) and rank not in followed.moved:
                self._move_slow(job, followed, by_rank[rank], found)

    def _tell_pace(
        self, job: Job, followed: _Followed, task: Task, found: Straggler | None
    ) -> None:
        node = task.placement.node
        words = "" if found is None else self._words(job, task)
        self._deliver(
            RankPaceChanged(
                at_s=self._now(),
                job_id=job.id,
                attempt=job.attempt,
                task=task.placement.task,
                node=node,
                ratio=1.0 if found is None else round(found.ratio, 4),
                words=words,
            )
        )
        if found is None:
            fault_id = _fault_id(job, task, "straggler")
            followed.faults.pop(fault_id, None)
            self._clear(fault_id, node)
            return
        meaning = f"task {task.placement.task} of {job.id} takes {found.ratio:.2f} times as long"
        self._find(job, followed, task, _Said("straggler", meaning, words))

    def _move_slow(self, job: Job, followed: _Followed, task: Task, found: Straggler) -> None:
        """Ask for the node of a slow task to be taken out, once that costs less than it saves.

        A verdict without a cause that the devices name stays one: the code may do it, too.
        """
        assert followed.progress is not None
        words, now_s = self._words(job, task), self._now()
        first_s, began_s = followed.progress.first_step_s, job.placed_s
        restart_s = RESTART_S if first_s is None or began_s is None else first_s - began_s
        undone_s = now_s - (followed.progress.saved_s or began_s or now_s)
        if job.spec.checkpoint.signal:
            undone_s = 0.0  # it saves itself when it is told to stop
        slow_s = now_s - followed.slow_from_s[task.placement.rank]
        if (
            len(job.live_tasks) < 2
            or not words
            or not is_worth_a_restart(
                found.ratio, slow_s=slow_s, restart_s=max(restart_s, 0.0), undone_s=undone_s
            )
        ):
            return
        followed.moved[task.placement.rank] = None
        text = f"task {task.placement.task} of {job.id} takes {found.ratio:.2f} times as long"
        meaning = f"{text} and has cost more than a restart: {words}"
        self._find(job, followed, task, _Said("straggler", meaning, words, _TAKE_OUT))

    def _words(self, job: Job, task: Task) -> str:
        """Return what the devices of a slow task say that would explain it."""
        clocks = sorted(
            device.sm_clock_mhz
            for each in job.live_tasks
            for _, device in self._devices_of(each)
            if device.sm_clock_mhz
        )
        usual = clocks[len(clocks) // 2] if clocks else 0
        for index, device in self._devices_of(task):
            mask, clock = device.throttle_mask or 0, device.sm_clock_mhz
            if mask & HW_SLOWDOWN_MASK:
                return f"GPU {index} is held down by its hardware"
            if mask & _SW_THERMAL_MASK:
                return f"GPU {index} is held down by its temperature"
            if clock and clock < _SLOW_CLOCK_RATIO * usual:
                return f"GPU {index} runs at {clock} MHz, its peers at {usual} MHz"
        return ""

    # Hangs.

    def _judge_hang(self, job: Job, followed: _Followed, policy: HealthPolicy) -> None:
        assert followed.progress is not None
        is_marking = followed.progress.has_marks or any(s.marks is not None for s in job.past)
        if is_marking:
            rule = HangRule(ratio=policy.hang_ratio, floor_s=policy.hang_min_s)
            found = followed.progress.hang(self._now(), rule) if policy.hang_ratio else None
            self._tell_hang(
                job, followed, found,
                held_by=self._held_by(policy), is_suspect=_acts_on_suspects(policy),
            )  # fmt: skip
            return
        since_s = self._spins_from(job, followed, policy)
        if since_s is not None and followed.hang_told is None:
            followed.hang_told = _NO_MARKS
            self._deliver(
                JobHung(
                    at_s=self._now(),
                    job_id=job.id,
                    attempt=job.attempt,
                    last_progress_s=since_s,
                    limit_s=policy.spin_wait_s,
                    phase="collective",
                    held_by=_NO_MARKS,
                )
            )
        elif followed.spins_from_s is None and followed.hang_told is not None:
            self._tell_over(job, followed)

    def _held_by(self, policy: HealthPolicy) -> str:
        if policy.mode is Mode.SHADOW:
            return HeldBy.SHADOW.value
        is_open = self._cluster().health.breaker_open_s is not None
        return HeldBy.BREAKER.value if is_open else ""

    def _tell_hang(
        self,
        job: Job,
        followed: _Followed,
        found: Hang | None,
        *,
        held_by: str,
        is_suspect: bool,
    ) -> None:
        if found is None:
            if followed.hang_told is not None:
                self._tell_over(job, followed)
            return
        if followed.hang_told == held_by or job.stop_cause is not None:
            return
        is_first = followed.hang_told is None
        followed.hang_told = held_by
        by_rank = {task.placement.rank: task for task in job.live_tasks}
        culprits = [by_rank[rank] for rank in found.ranks if rank in by_rank]
        self._deliver(
            JobHung(
                at_s=self._now(),
                job_id=job.id,
                attempt=job.attempt,
                last_progress_s=found.last_progress_s,
                limit_s=found.limit_s,
                phase=found.phase.value,
                tasks=tuple(task.placement.task for task in culprits),
                held_by=held_by,
            )
        )
        nodes = {task.placement.node for task in culprits}
        is_move = is_suspect and not held_by and len(nodes) == 1 and len(job.live_tasks) > 1
        for task in culprits if is_first else ():
            meaning = f"the others of {job.id} wait for task {task.placement.task}"
            action = _TAKE_OUT if is_move else "observe"
            self._find(job, followed, task, _Said("hang", meaning, self._words(job, task), action))

    def _tell_over(self, job: Job, followed: _Followed) -> None:
        followed.hang_told = None
        now_s = self._now()
        self._deliver(
            JobHung(
                at_s=now_s, job_id=job.id, attempt=job.attempt, last_progress_s=now_s, is_over=True
            )
        )

    def _spins_from(self, job: Job, followed: _Followed, policy: HealthPolicy) -> float | None:
        """Return since when all devices of a job spin, None before that is for too long."""
        if not policy.spin_wait_s or not self._is_spinning(job):
            followed.spins_from_s = None
            return None
        if followed.spins_from_s is None:
            followed.spins_from_s = self._now()
        if self._now() - followed.spins_from_s < policy.spin_wait_s:
            return None
        return followed.spins_from_s

    def _is_spinning(self, job: Job) -> bool:
        readings: list[DeviceReading] = []
        for task in job.live_tasks:
            devices = self._devices_of(task)
            if len(devices) < len(task.placement.devices):
                return False
            for _, device in devices:
                if device.power_w is None or not device.power_limit_w:
                    return False
                idle_w = min(device.power_w, _IDLE_POWER_RATIO * device.power_limit_w)
                readings.append(
                    DeviceReading(
                        utilization_ratio=device.utilization_ratio or 0.0,
                        power_w=device.power_w,
                        idle_power_w=idle_w,
                        limit_power_w=device.power_limit_w,
                        tensor_ratio=device.activity.tensor_ratio if device.activity else None,
                    )
                )
        # One device waits for nobody: what looks like a spin there is a light load.
        return len(readings) > 1 and is_spin_wait(readings)

    def _devices_of(self, task: Task) -> Sequence[tuple[int, DeviceTelemetry]]:
        """Return what the whole devices of a task say now; none without fresh readings."""
        known = self._telemetry.devices(task.placement.node)
        return [
            (share.index, known[share.index])
            for share in task.placement.devices
            if share.milli == WHOLE_DEVICE_MILLI and share.index in known
        ]

    def _all_devices(self, job: Job) -> list[DeviceTelemetry] | None:
        """Return what all devices of a job say now, None where some say nothing."""
        found: list[DeviceTelemetry] = []
        for task in job.live_tasks:
            known = self._telemetry.devices(task.placement.node)
            shares = task.placement.devices
            if any(share.index not in known for share in shares):
                return None
            found += [known[share.index] for share in shares]
        return found

    # What is said of nodes.

    def _find(self, job: Job, followed: _Followed, task: Task, said: _Said) -> None:
        fault_id = _fault_id(job, task, said.code)
        followed.faults[fault_id] = task.placement.node
        fault = FaultFact(
            id=fault_id,
            at_s=self._now(),
            fault_class=_JOB_FAULT,
            code=said.code,
            severity="warning",
            action=said.action,
            meaning=said.meaning,
            job=job.id,
            evidence=said.evidence,
        )
        self._deliver(FaultFound(at_s=self._now(), node=task.placement.node, fault=fault))

    def _clear(self, fault_id: str, node: NodeName) -> None:
        self._deliver(FaultCleared(at_s=self._now(), node=node, fault_id=fault_id))


def _acts_on_suspects(policy: HealthPolicy) -> bool:
    return policy.mode is Mode.ACT and policy.suspects is Suspects.ACT


def _fault_id(job: Job, task: Task, code: str) -> str:
    placement = task.placement
    return f"{placement.node}/{_JOB_FAULT}/{job.id}/{job.attempt}/{code}/{placement.task}"


def _ref(job: Job, task: Task) -> TaskRef:
    return TaskRef(
        job_id=job.id, attempt=job.attempt, task=task.placement.task, node=task.placement.node
    )


def _open_faults(cluster: Cluster) -> dict[str, NodeName]:
    return {
        fault.id: node
        for node, faults in cluster.health.faults.items()
        for fault in faults
        if fault.fault_class == _JOB_FAULT and fault.cleared_at_s is None
    }
