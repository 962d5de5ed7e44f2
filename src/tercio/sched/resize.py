"""The elastic policy in a cycle: jobs with throughput profiles get sizes and types by gain.

Jobs that save their work and may be stopped take part. Every so often the running ones among them
may be resized or moved to another type, which is an eviction with a promise of the new devices;
waiting ones start at the size that the whole division gives them. Where the policy has turns, a
running one may have to go for a waiting one that had less. While any other job waits
for devices, nothing is handed out here: elastic jobs then start at their least size in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from tercio.model.ids import JobId
from tercio.model.job import EndCause, JobSpec
from tercio.model.placement import TaskPlacement
from tercio.model.queue import ElasticPolicy
from tercio.model.reservation import Promise
from tercio.model.snapshot import RunningJob, WaitingJob
from tercio.sched.elastic import NOTHING, Option, allot, kept_part, worth
from tercio.sched.gang import Gang, Room
from tercio.sched.ground import Ground, place_on, tenant_of
from tercio.sched.memory import Memory
from tercio.sched.need import ANY, Mode, Need, Shape
from tercio.sched.owners import owner_of
from tercio.sched.plan import Eviction
from tercio.sched.power import Budgets
from tercio.sched.statement import Statement
from tercio.sched.survey import stopped_enough_until_s
from tercio.sched.table import Flags
from tercio.sched.turns import in_turn, why

PATIENCE_S: Final = 600.0
"""How long new devices are kept for a job after those who leave should be gone."""

SERVED: Final = 2.0
"""What a device of its least size is worth to a job in its turn, above all that sizes gain."""

TRIES: Final = 8
"""How often a division is placed anew without the moves that found no place."""

Tasks = tuple[TaskPlacement, ...]


class Taker(NamedTuple):
    """A job that takes part.

    Attributes:
        job: running, or waiting.
        options: what it could have; `types` their device types.
        now: number of the option it has, `NOTHING` for none.
    """

    job: RunningJob | WaitingJob
    shape: Shape
    options: tuple[Option, ...]
    now: int


class Moved(NamedTuple):
    """A job and its new place."""

    taker: Taker
    tasks: Tasks


class Stopped(NamedTuple):
    """A running job whose turn is over, whose turn it is, and why in words."""

    job: RunningJob
    for_job: JobId
    message: str


class Division(NamedTuple):
    """What a cycle decided.

    Attributes:
        moves: running jobs that go elsewhere.
        starts: waiting jobs and their places.
        stops: running jobs that go, each for another job.
    """

    moves: tuple[Moved, ...] = ()
    starts: tuple[Moved, ...] = ()
    stops: tuple[Stopped, ...] = ()


def is_profiled(spec: JobSpec, *, is_preemptible: bool) -> bool:
    """Whether the elastic policy may choose size and type of a job and change them later."""
    if not spec.goodput or spec.array is not None or len(spec.groups) != 1:
        return False
    group = spec.groups[0]
    saves = spec.checkpoint.path is not None and EndCause.PREEMPTED in spec.retry.on
    return saves and is_preemptible and not group.subgroups


class Resizing:
    """One division of devices among the jobs that take part.

    Attributes:
        wakes: instants at which time alone will change the outcome.
    """

    def __init__(self, memory: Memory, elastic: ElasticPolicy, now_s: float) -> None:
        self.memory = memory
        self.elastic = elastic
        self.now_s = now_s
        self.wakes: list[float] = []
        self._period_start_s = now_s // elastic.period_s * elastic.period_s
        self._types = memory.table.types()
        self._rows: dict[str, Flags] = {}
        self._budgets = Budgets(memory)

    def divide(self) -> Division:
        """Decide; nothing is taken."""
        memory = self.memory
        waiting = []
        for job_class in memory.classes.values():
            if not is_profiled(job_class.spec, is_preemptible=job_class.is_preemptible):
                return Division()
            jobs = [memory.waiting[member.job_id] for member in job_class.members]
            waiting += [(job, job_class.shape) for job in jobs]
        waiting.sort(key=lambda pair: (pair[0].submitted_s, pair[0].sequence))
        running = self._movable()
        if not waiting and not running:
            return Division()
        takers = [self._taker(job, memory.shape_of(job)) for job in running]
        takers += [self._taker(job, shape) for job, shape in waiting]
        takers = [taker for taker in takers if taker.options]
        return self._fit(takers)

    def _movable(self) -> list[RunningJob]:
        """Running jobs that may be changed now; others may be when their time has come."""
        found = []
        for job in self.memory.running.values():
            if job.is_stopping or job.stopping_tasks or job.missing:
                continue
            if not is_profiled(job.spec, is_preemptible=job.is_preemptible):
                continue
            period_s = self.elastic.period_s
            from_s = (job.placed_s // period_s + 1) * period_s
            spared_s = stopped_enough_until_s(job, self.memory.policy.preemption, self.now_s)
            if from_s > self.now_s or job.job_id in self.memory.started:
                self.wakes.append(from_s)
            elif spared_s is not None:
                self.wakes.append(spared_s)
            elif job.started_s is not None:
                found.append(job)
        if found:
            self.wakes.append(self._period_start_s + self.elastic.period_s)
        found.sort(key=lambda job: job.sequence)
        return found

    # Options.

    def _taker(self, job: RunningJob | WaitingJob, shape: Shape) -> Taker:
        rates = self._rates(job.spec, shape)
        least = min((rate for *_, rate in rates), default=0.0)
        held = self._held(job) if isinstance(job, RunningJob) else None
        options: list[Option] = []
        now = NOTHING
        for kind, devices, tasks, rate in rates:
            is_same = held == (kind, tasks)
            kept = 1.0
            if isinstance(job, RunningJob) and not is_same:
                # Counted to the start of the period, so that inside it time alone changes nothing.
                ran_s = max(self._period_start_s - job.placed_s, 0.0)
                had = job.had
                ran_s += 0.0 if had is None else had.run_s
                moves = 0 if had is None else had.moves
                kept = kept_part(ran_s, moves, self.elastic.restart_s)
            if is_same:
                now = len(options)
            value = worth(rate, least, self.elastic.fairness, kept)
            options.append(Option(kind, devices, tasks, value))
        return Taker(job, shape, tuple(options), now)

    def _rates(self, spec: JobSpec, shape: Shape) -> list[tuple[int, int, int, float]]:
        """Type, devices, tasks and rate of everything that was measured and may be had."""
        leaf = shape.leaves[0]
        found = []
        for profile in spec.goodput:
            need = self._need(shape, profile.type)
            if need is None or profile.type not in self._types:
                continue
            kind = self._types.index(profile.type)
            best = 0.0
            for tasks, rate in zip(profile.tasks, profile.units_per_s, strict=True):
                if leaf.tasks <= tasks <= max(leaf.tasks, leaf.tasks_max) and rate > best:
                    best = rate
                    found.append((kind, tasks * need.count, tasks, rate))
        return found

    @staticmethod
    def _need(shape: Shape, type_name: str) -> Need | None:
        for need in shape.leaves[0].needs:
            if need.mode is Mode.WHOLE and need.type in (type_name, ANY):
                return need
        return None

    def _held(self, job: RunningJob) -> tuple[int, int] | None:
        """Type and tasks of a running job; None for one on several types."""
        table = self.memory.table
        types = {
            table.type_of(table.row_of[task.node], share)
            for task in job.tasks
            if task.node in table.row_of
            for share in task.devices
        }
        if len(types) != 1:
            return None
        (name,) = types
        return self._types.index(name), len(job.tasks)

    # Places.

    def _fit(self, takers: Sequence[Taker]) -> Division:
        """Divide, and place what changes; a move without a place is left out and all is redone."""
        fixed: dict[JobId, None] = {}
        for _ in range(TRIES):
            open_ = [taker for taker in takers if taker.job.job_id not in fixed]
            found, stuck = self._try(open_)
            if not stuck:
                return found
            fixed.update(dict.fromkeys(stuck))
        return Division()

    def _try(self, takers: Sequence[Taker]) -> tuple[Division, list[JobId]]:
        memory = self.memory
        statement = Statement(memory.table)
        held = [t for t in takers if isinstance(t.job, RunningJob)]
        for taker in held:
            self._evict(statement, taker)
        supply = [self._supply(takers, kind) for kind in range(len(self._types))]
        options = self._in_turn(takers, supply)
        chosen = allot(options, supply)
        statement.rollback()
        # Nobody is stopped in its turn with nothing in return: such a job keeps what it has.
        stopped = [t.job.job_id for t, o, c in zip(takers, options, chosen, strict=True)
                   if o and c == NOTHING and isinstance(t.job, RunningJob)]  # fmt: skip
        if stopped:
            return Division(), stopped
        changed = [(t, c) for t, c in zip(takers, chosen, strict=True) if c != t.now]
        for taker, _ in changed:
            if isinstance(taker.job, RunningJob):
                self._evict(statement, taker)
        try:
            return self._placed(statement, changed)
        finally:
            statement.rollback()

    def _in_turn(self, takers: Sequence[Taker], supply: Sequence[int]) -> list[Sequence[Option]]:
        """Return the options of each, none for those whose turn it is not."""
        turn_s = self.elastic.turn_s
        if turn_s is None:
            return [taker.options for taker in takers]
        rested_s = self.now_s - self.memory.policy.preemption.min_runtime_s
        jobs = [(taker.job, taker.options) for taker in takers]
        kept = {
            job.job_id for job, _ in jobs if isinstance(job, RunningJob) and job.placed_s > rested_s
        }
        found = in_turn(jobs, supply, kept=kept, turn_s=turn_s, at_s=self._period_start_s)
        if len(found) == len(takers):
            return [taker.options for taker in takers]
        options: list[Sequence[Option]] = []
        for taker in takers:
            base = SERVED * min(option.devices for option in taker.options)
            is_in = taker.job.job_id in found
            own = [o._replace(worth=o.worth + base) for o in taker.options]
            options.append(own if is_in else ())
        return options

    def _placed(
        self, statement: Statement, changed: Sequence[tuple[Taker, int]]
    ) -> tuple[Division, list[JobId]]:
        moves: list[Moved] = []
        starts: list[Moved] = []
        stuck: list[JobId] = []
        wanted = [(t, t.options[c]) for t, c in changed if c != NOTHING]
        ground = self.memory.ground
        if ground is not None:
            ground = ground.without([t.job.job_id for t, _ in wanted])
        for taker, option in sorted(wanted, key=lambda pair: -pair[1].devices):
            tasks = self._place(statement, taker, option, ground)
            if tasks is not None:
                if ground is not None:
                    ground.add(tenant_of(self.memory.tree, taker.job), taker.job.job_id, tasks)
                (moves if isinstance(taker.job, RunningJob) else starts).append(Moved(taker, tasks))
            elif isinstance(taker.job, RunningJob):
                stuck.append(taker.job.job_id)
        gone = [t.job for t, c in changed if c == NOTHING and isinstance(t.job, RunningJob)]
        stops = self._stops(statement, gone, [*starts, *moves])
        return Division(tuple(moves), tuple(starts), stops), stuck

    def _stops(
        self, statement: Statement, gone: Sequence[RunningJob], placed: Sequence[Moved]
    ) -> tuple[Stopped, ...]:
        """Return who has to go for what was placed; the others stay where they are."""
        table = self.memory.table
        found = []
        for job in gone:
            mark = statement.mark()
            if self._stays(statement, job):
                continue
            statement.rollback(mark)
            nodes = {task.node for task in job.tasks if task.node in table.row_of}
            taker = next((m for m in placed if any(t.node in nodes for t in m.tasks)), None)
            if taker is not None and self.elastic.turn_s is not None:
                other = taker.taker.job
                message = why(job, other, self.elastic.turn_s, self._period_start_s)
                found.append(Stopped(job, other.job_id, message))
        return tuple(found)

    def _stays(self, statement: Statement, job: RunningJob) -> bool:
        """Put a job back where it runs; False, with traces to roll back, where others stand now."""
        memory, table = self.memory, self.memory.table
        for task in job.tasks:
            row = table.row_of.get(task.node)
            if row is None:
                continue
            if not table.has_host_room(row, task) or any(
                table.holders.item(row, share.index) for share in task.devices
            ):
                return False
            statement.place(row, job.job_id, task)
        queue, amounts = memory.tree.at(job.queue), memory.held_amounts(job.tasks)
        if memory.tree.blocked(queue, owner_of(job), amounts, memory.capacity()) is not None:
            return False
        statement.charge(queue, owner_of(job), amounts, is_firm=not job.is_preemptible)
        return True

    def _evict(self, statement: Statement, taker: Taker) -> None:
        memory, job = self.memory, taker.job
        assert isinstance(job, RunningJob)
        for task in job.tasks:
            row = memory.table.row_of.get(task.node)
            if row is not None:
                statement.evict(row, job.job_id, task)
        queue = memory.tree.at(job.queue)
        amounts = memory.held_amounts(job.tasks)
        firm = not job.is_preemptible
        statement.charge(queue, owner_of(job), amounts, is_firm=firm, sign=-1)

    def _supply(self, takers: Sequence[Taker], kind: int) -> int:
        """Devices of a type that are free, with those of the jobs that take part given back."""
        rows = self._of_type(self._types[kind])
        best = 0
        for need in dict.fromkeys(self._need(t.shape, self._types[kind]) for t in takers):
            if need is not None:
                fits, _ = self._room(need).columns(need)
                best = max(best, int(fits[rows].sum()) * need.count)
        return best

    def _room(self, need: Need, job_id: JobId | None = None) -> Room:
        memory = self.memory
        free_of = () if job_id is None else (job_id,)
        bound = memory.holds.binding(float("inf"), free_of, start_s=self.now_s)
        return Room({need: memory.fit(need)}, memory.holds, bound)

    def _of_type(self, type_name: str) -> Flags:
        if type_name not in self._rows:
            table = self.memory.table
            kinds = [at for at, kind in enumerate(table.kinds) if kind.type == type_name]
            rows: Flags = np.zeros(table.count, np.bool_)
            rows |= np.isin(table.kind, kinds).any(axis=1)
            self._rows[type_name] = rows
        return self._rows[type_name]

    def _place(
        self, statement: Statement, taker: Taker, option: Option, ground: Ground | None
    ) -> Tasks | None:
        """Take a place for a job at a size, or leave no trace."""
        memory, job = self.memory, taker.job
        need = self._need(taker.shape, self._types[option.kind])
        assert need is not None
        room = self._room(need, job.job_id)
        mark = statement.mark()
        gang = Gang(memory.table, room, statement, job.job_id, (need,))
        leaf = taker.shape.leaves[0].index
        tasks, _ = place_on(
            ground, tenant_of(memory.tree, job), gang, taker.shape,
            most={leaf: option.tasks}, within=self._of_type(self._types[option.kind]),
        )  # fmt: skip
        is_whole = tasks is not None and len(tasks) == option.tasks
        if (
            tasks is not None
            and is_whole
            and not self._budgets.is_over(job.job_id, tasks, room.bound, statement=statement)
        ):
            amounts = memory.held_amounts(tasks)
            queue = memory.tree.at(job.queue)
            if memory.tree.blocked(queue, owner_of(job), amounts, memory.capacity()) is None:
                firm = not job.is_preemptible
                statement.charge(queue, owner_of(job), amounts, is_firm=firm)
                return tasks
        statement.rollback(mark)
        return None


def carry_out(
    memory: Memory,
    division: Division,
    *,
    now_s: float,
    grace_s: float,
    stop: Callable[[Eviction], None],
) -> float | None:
    """Order stops and moves and promise new places; return when the promises end."""
    if not division.moves and not division.stops:
        return None
    by_s = now_s + grace_s
    for job, for_job, message in division.stops:
        stop(
            Eviction(job_id=job.job_id, cause=EndCause.PREEMPTED, for_job=for_job, message=message)
        )
        memory.order_to_stop(job.job_id, by_s)
    for taker, tasks in division.moves:
        where = ", ".join(dict.fromkeys(task.node for task in tasks))
        message = f"restarts with {len(tasks)} tasks on {where}, where it gains more"
        job_id = taker.job.job_id
        stop(Eviction(job_id=job_id, cause=EndCause.PREEMPTED, for_job=job_id, message=message))
        memory.order_to_stop(job_id, by_s)
    for promise in promises(memory, division.moves, by_s + PATIENCE_S):
        memory.reserve(promise)
    return by_s + PATIENCE_S


def promises(memory: Memory, moved: Sequence[Moved], expires_s: float) -> list[Promise]:
    """New places, each with the jobs that have to leave first."""
    holder: dict[tuple[str, int], JobId] = {}
    for job_id in memory.stopping:
        for task in memory.running[job_id].tasks:
            for share in task.devices:
                holder[task.node, share.index] = job_id
    found = []
    for taker, tasks in moved:
        own = [taker.job.job_id] if isinstance(taker.job, RunningJob) else []
        before = [
            holder[task.node, share.index]
            for task in tasks
            for share in task.devices
            if (task.node, share.index) in holder
        ]
        found.append(
            Promise(
                job_id=taker.job.job_id,
                tasks=tasks,
                from_s=None,
                expires_s=expires_s,
                evicting=tuple(dict.fromkeys([*own, *before])),
            )
        )
    return found
