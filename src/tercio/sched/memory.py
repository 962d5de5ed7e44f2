"""What the scheduler keeps between cycles: columns, queues and classes, updated by the change.

A plan is the same with or without a memory: everything here can be rebuilt from a snapshot, and
is, whenever the snapshot does not say what differs from the revision remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tercio.model.ids import JobId, NodeName, array_parent
from tercio.model.placement import TaskPlacement
from tercio.model.queue import Policy, QueueOrder
from tercio.model.reasons import Reason
from tercio.model.reservation import Promise
from tercio.model.resources import Amounts
from tercio.model.shape import domains_of, shape_levels
from tercio.model.snapshot import RunningJob, RunRatios, Snapshot, StartRatios, WaitingJob
from tercio.sched.classes import ClassKey, JobClass, class_key, startable
from tercio.sched.fairshare import RUNNING_JOBS, QueueNode
from tercio.sched.feasible import Fit
from tercio.sched.fits import Fits
from tercio.sched.ground import Ground, tenant_of
from tercio.sched.holdings import Holdings
from tercio.sched.holds import Hold, Holds
from tercio.sched.lines import Lines
from tercio.sched.need import Need, Shape, compile_shape, is_small, job_amounts
from tercio.sched.owners import Owner
from tercio.sched.pools import Pools
from tercio.sched.table import node_kinds
from tercio.sched.timers import TIMED, Timers, is_timed, own_time_s

MAX_EMPTY = 512  # most classes without members that are kept for the next job like theirs


class LastPlan(NamedTuple):
    """What an idle cycle repeats."""

    promises: tuple[Promise, ...]
    wake_at_s: float | None


class Memory(Holdings):
    """Mutable cache of one scheduler.

    Attributes:
        waiting: jobs by id, as of `revision`.
        classes: by key; empty ones are dropped. `lines` are the same in order, by queue.
        class_of: class of every waiting job that no gate of its own holds back.
        gates: reason of every other waiting job.
        told: reason last reported, by job.
        late: earliest start of jobs that would miss their deadlines, and so got no promise.
        declined: by class, why free devices of a slower type are not taken.
        fresh: jobs whose reason must be compared again.
    """

    def __init__(self) -> None:
        self.revision = -1
        self.now_s = 0.0
        self._reset(Policy())
        self.told: dict[JobId, Reason] = {}
        self.fresh: dict[JobId, None] = {}
        self.is_empty = True
        self.cycle = 0

    def _reset(self, policy: Policy) -> None:
        self._reset_holdings(policy)
        self.holds = Holds(self.table, self.end_of)
        self.waiting: dict[JobId, WaitingJob] = {}
        self.repairs: dict[JobId, None] = {}
        self.classes: dict[ClassKey, JobClass] = {}
        self.lines = Lines()
        self.class_of: dict[JobId, JobClass] = {}
        self._empty: dict[ClassKey, JobClass] = {}
        self.gates: dict[JobId, Reason] = {}
        self.fits = Fits(policy)
        self.pools = Pools(self.table, self.fit)
        self._shapes: dict[tuple[object, ...], Shape] = {}
        self.has_trial = False
        self._is_ordered = policy.reservation_depth == 0 or any(
            node.spec.order is QueueOrder.STRICT for node in self.tree.nodes()
        )
        self._amounts: dict[int, tuple[Amounts, ...]] = {}
        self._timers = Timers()
        self._numbers = 0
        self.started: dict[JobId, None] = {}
        self.sheltered: dict[JobId, Hold] = {}
        self.promises: dict[JobId, Promise] = {}
        self.late: dict[JobId, float] = {}
        self.declined: dict[int, str] = {}
        self.pledged: dict[JobId, tuple[QueueNode, Owner, Amounts, bool]] = {}
        self.last: LastPlan | None = None
        self.run_ratios = RunRatios()
        self.start_ratios = StartRatios()
        self.ground: Ground | None = None
        self._domains_version = -1
        self._levels = shape_levels(policy.queues)

    # Following the cluster.

    def follow(self, snapshot: Snapshot, policy: Policy, now_s: float) -> bool:
        """Bring everything up to the snapshot; return whether anything changed."""
        self.cycle += 1
        self.now_s = now_s
        changes = snapshot.changes
        is_known = changes is not None and changes.since == self.revision and not self.is_empty
        is_in_force = policy is self.policy or policy == self.policy
        if not is_known or changes is None or not is_in_force:
            self._rebuild(snapshot, policy, now_s)
            return True
        self.run_ratios, self.start_ratios = snapshot.run_ratios, snapshot.start_ratios
        before = self.version
        running = dict.fromkeys((*self.planned, *changes.running))
        planned = self.planned
        waiting = dict.fromkeys((*planned, *changes.waiting))
        self.planned = []
        if changes.nodes and not self._follow_nodes(snapshot, changes.nodes):
            self._rebuild(snapshot, policy, now_s)
            return True
        self._promise_domains()
        for job_id in running:
            self._set_running(job_id, snapshot.running.get(job_id))
        for job_id in planned:
            # What the last plan did to them is undone here: the snapshot alone counts.
            self._forget_waiting(job_id)
        for job_id in waiting:
            self._set_waiting(job_id, snapshot.waiting.get(job_id), now_s)
        self._ring(now_s)
        self.revision = snapshot.revision
        self.tree.owners.begin(snapshot.spent, now_s)
        self.tree.load_decay(snapshot.decayed_use)
        if self.fits.load_mix(snapshot.mix, self.table):
            self.version += 1
        return self.version != before

    def _rebuild(self, snapshot: Snapshot, policy: Policy, now_s: float) -> None:
        self._reset(policy)
        self.table.add_nodes(snapshot.nodes.values())
        self.has_trial = bool(self.table.trial.any())
        self._promise_domains()
        for job_id, running in snapshot.running.items():
            self._set_running(job_id, running)
        for job_id, waiting in snapshot.waiting.items():
            self._set_waiting(job_id, waiting, now_s)
        self.told = {j: r for j, r in self.told.items() if j in self.waiting}
        self.fresh = dict.fromkeys(self.waiting)
        self.revision = snapshot.revision
        self.is_empty = False
        self.run_ratios, self.start_ratios = snapshot.run_ratios, snapshot.start_ratios
        self.tree.owners.begin(snapshot.spent, now_s)
        self.tree.load_decay(snapshot.decayed_use)
        if self.fits.load_mix(snapshot.mix, self.table):
            self.version += 1

    def _promise_domains(self) -> None:
        """Turn guarantees by shape into amounts for the nodes there are."""
        levels = self._levels
        if levels and self._domains_version != self.table.facts_version:
            specs = (node.spec for node in self.table.nodes)
            self.tree.promise_domains(self.policy, domains_of(specs, levels))
            self._domains_version = self.table.facts_version
            self.entitlement_stale = True

    def lay_ground(self) -> None:
        """Count anew what stands on the domains that are guaranteed, for one cycle."""
        self.ground = None
        if not self._levels:
            return
        self.ground = Ground(self.table, self.tree, self.policy, self.capacity())
        for job in self.running.values():
            if not job.is_stopping:
                tasks = [t for t in job.tasks if t.task not in job.stopping_tasks]
                self.ground.add(tenant_of(self.tree, job), job.job_id, tasks)

    def _follow_nodes(self, snapshot: Snapshot, changed: Sequence[NodeName]) -> bool:
        """Apply changed nodes; False when rows would have to move, or requests be compiled anew."""
        table = self.table
        # Most are named because tasks came or went there: their facts are the same object.
        changed = [
            name
            for name in dict.fromkeys(changed)
            if (row := table.row_of.get(name)) is None
            or table.nodes[row] is not snapshot.nodes.get(name)
        ]
        if not changed:
            return True
        kinds = len(table.kinds)
        known = len(table.names)
        names = list(snapshot.nodes)
        if names[:known] != table.names:
            return False
        # Requests of any type are compiled for the kinds there are.
        for name in changed:
            row = table.row_of.get(name)
            if row is not None and node_kinds(table.nodes[row]) != node_kinds(snapshot.nodes[name]):
                return False
        for name in changed:
            row = table.row_of.get(name)
            if row is not None:
                table.set_node(row, snapshot.nodes[name])
        if len(names) > known:
            table.add_nodes(snapshot.nodes[name] for name in names[known:])
            for job in self.running.values():
                if any(t.node not in table.row_of or table.row_of[t.node] >= known
                       for t in job.tasks):  # fmt: skip
                    return False
        self.version += 1
        self.entitlement_stale = True
        return len(table.kinds) == kinds and bool(table.trial.any()) == self.has_trial

    def _set_running(self, job_id: JobId, job: RunningJob | None) -> None:
        old = self.running.get(job_id)
        if old is job or old == job:
            return
        if old is not None and job is not None and self.renew_running(old, job):
            return
        if old is not None:
            self.remove_running(old)
        if job is not None:
            self.add_running(job)

    def pledge(self, promise: Promise, job: WaitingJob, job_class: JobClass) -> None:
        """Keep a promise for this cycle: its devices are held, its amounts count as used."""
        self.promises[promise.job_id] = promise
        self.holds.add(promise)
        amounts = self.held_amounts(promise.tasks)
        firm = not job.is_preemptible
        job_class.queue.charge(job_class.owner, amounts, is_firm=firm, sign=+1)
        self.tree.owners.pledge(job_class.owner, amounts)
        self.pledged[promise.job_id] = (job_class.queue, job_class.owner, amounts, firm)
        if self.ground is not None:
            self.ground.add(tenant_of(self.tree, job), promise.job_id, promise.tasks)

    def reserve(self, promise: Promise, limit_s: float | None = None) -> None:
        """Keep a promise to a job that waits for others to end by themselves."""
        self.promises[promise.job_id] = promise
        if promise.from_s is None or limit_s is None:
            self.holds.add(promise)
        else:
            self.holds.add(promise, promise.from_s + limit_s)

    def waiting_of(self, job_id: JobId) -> WaitingJob | None:
        """The waiting job, or the array that a waiting element belongs to."""
        return self.waiting.get(job_id) or self.waiting.get(array_parent(job_id) or job_id)

    def set_aside(self, job: WaitingJob, gate: Reason, *, left: int) -> None:
        """Take a job out of its class for the rest of the cycle, for a reason of its own."""
        self.planned.append(job.job_id)
        if left <= 0:
            self._leave_class(job)
            self.gates[job.job_id] = gate
            self.fresh[job.job_id] = None

    def forget_promises(self) -> None:
        """Take back what promises of the last cycle held and used."""
        for queue, owner, amounts, firm in self.pledged.values():
            queue.charge(owner, amounts, is_firm=firm, sign=-1)
        self.pledged.clear()
        self.started.clear()
        self.promises.clear()
        self.late.clear()
        self.declined.clear()
        self.holds.clear()

    # Waiting jobs.

    def _set_waiting(self, job_id: JobId, job: WaitingJob | None, now_s: float) -> None:
        old = self.waiting.get(job_id)
        if old is not None and (old is job or old == job):
            return
        self._forget_waiting(job_id)
        if job is None:
            self.told.pop(job_id, None)
            self.fresh.pop(job_id, None)
        else:
            self.waiting[job_id] = job
            if job.is_repair:
                self.repairs[job_id] = None
            self._admit(job, now_s)
            self.fresh[job_id] = None
        self.version += 1

    def _forget_waiting(self, job_id: JobId) -> None:
        old = self.waiting.pop(job_id, None)
        self.repairs.pop(job_id, None)
        if old is not None:
            self._leave_class(old)
            self.gates.pop(job_id, None)
            self.version += 1

    def _admit(self, job: WaitingJob, now_s: float) -> None:
        """Put a job into its class, or behind its own gate."""
        gate = self._gate(job, now_s)
        if gate is not None:
            self.gates[job.job_id] = gate
            return
        self.gates.pop(job.job_id, None)
        self._timers.expect(job, now_s)
        key = class_key(job, now_s)
        found = self.classes.get(key)
        if found is None:
            found = self.classes[key] = self._class(key, job)
            self.pools.add(found)
        self.lines.join(found, job)
        self.class_of[job.job_id] = found
        self._demand(found, startable(job))

    def _class(self, key: ClassKey, job: WaitingJob) -> JobClass:
        self._numbers += 1
        found = self._empty.pop(key, None)
        queue = self.tree.at(job.queue)
        if found is not None and found.queue is queue:
            found.reuse(job, self._numbers)
            return found
        shape = self.shape_of(job)
        return JobClass(
            key=key, number=self._numbers, job=job, shape=shape, amounts=self._amounts_of(shape),
            queue=queue,
        )  # fmt: skip

    def _leave_class(self, job: WaitingJob, *, is_wanted: bool = False) -> None:
        found = self.class_of.pop(job.job_id, None)
        if found is None:
            return
        self.lines.leave(found, job)
        if not is_wanted:
            self._demand(found, -startable(job))
        if not found.members:
            del self.classes[found.key]
            self.pools.remove(found)
            self._empty[found.key] = found
            if len(self._empty) > MAX_EMPTY:
                del self._empty[next(iter(self._empty))]

    def _demand(self, job_class: JobClass, count: int) -> None:
        wanted = job_class.amounts[0]
        if count not in (1, -1):
            wanted = {name: amount * abs(count) for name, amount in wanted.items()}
        job_class.queue.want(wanted, 1 if count > 0 else -1)
        self.entitlement_stale = True

    def _amounts_of(self, shape: Shape) -> tuple[Amounts, ...]:
        """Quota amounts of a shape by combination; nobody changes them."""
        found = self._amounts.get(shape.number)
        if found is None:
            found = self._amounts[shape.number] = tuple(
                {**job_amounts(shape, combination, self.policy), RUNNING_JOBS: 1}
                for combination in shape.combinations
            )
        return found

    def shape_of(self, job: WaitingJob | RunningJob) -> Shape:
        """The compiled request of a job."""
        spec = job.spec
        speed = tuple(sorted(spec.speed.items()))
        is_large = self.has_trial and not (job.is_preemptible and is_small(spec))
        where = (spec.topology, spec.nodes, spec.sites, spec.image is None)
        key = (spec.groups, where, speed, is_large)
        found = self._shapes.get(key)
        if found is None:
            found = self._shapes[key] = compile_shape(
                spec, self.table, len(self._shapes) + 1,
                is_ordered=self._is_ordered, is_large=is_large,
            )  # fmt: skip
        return found

    def start(
        self,
        job: WaitingJob,
        job_id: JobId,
        tasks: tuple[TaskPlacement, ...],
        amounts: Amounts,
        now_s: float,
        *,
        left: int,
    ) -> None:
        """Record a start of this cycle; the next snapshot confirms it or takes it back.

        `amounts` were charged for it. `left` is how many elements of the job may still start
        now, negative when none waits.
        """
        limit_s = job.spec.time.limit_s
        # What it wants as a waiting job, where that is taken back with the class it leaves.
        own = self.class_of.get(job.job_id) if job.pending is None else None
        wanted = None if own is None else own.amounts[0]
        self.add_running(
            RunningJob(
                job_id=job_id,
                spec=job.spec,
                queue=job.queue,
                user=job.user,
                tenant=job.tenant,
                priority=job.priority,
                is_preemptible=job.is_preemptible,
                sequence=job.sequence,
                attempt=job.attempt,
                tasks=tasks,
                placed_s=now_s,
                ends_s=None if limit_s is None else now_s + limit_s,
                evictions_s=job.evictions_s,
                predicted_s=job.predicted_s,
            ),
            amounts,
            wanted=wanted,
        )
        self.started[job_id] = None
        if self.ground is not None:
            self.ground.add(tenant_of(self.tree, job), job_id, tasks)
        self.planned += [job_id] if job_id == job.job_id else [job_id, job.job_id]
        if left <= 0:
            self._leave_class(job, is_wanted=wanted is not None)
            if left < 0:
                del self.waiting[job.job_id]
            else:
                self.gates[job.job_id] = Reason.USER_LIMIT
                self.fresh[job.job_id] = None

    def tell(self) -> tuple[JobId, ...]:
        """Return the waiting jobs whose reason differs from the one last told, in order."""
        if not self.classes and not self.fresh:
            return ()
        changed: dict[JobId, None] = {}
        for job_class in self.classes.values():
            reason = job_class.verdict.reason if job_class.verdict else Reason.READY
            if reason is not job_class.told:
                job_class.told = reason
                changed.update(dict.fromkeys(m.job_id for m in job_class.members))
        changed.update(self.fresh)
        self.fresh = {}
        found = [
            job_id
            for job_id in changed
            if job_id in self.waiting and self.told.get(job_id) is not self.reason_of(job_id)
        ]
        for job_id in found:
            self.told[job_id] = self.reason_of(job_id)
        found.sort(key=lambda j: (self.waiting[j].submitted_s, self.waiting[j].sequence, j))
        return tuple(found)

    def reason_of(self, job_id: JobId) -> Reason:
        """Reason code of a waiting job after the cycle."""
        gate = self.gates.get(job_id)
        if gate is not None:
            return gate
        verdict = self.class_of[job_id].verdict
        return Reason.READY if verdict is None else verdict.reason

    def _gate(self, job: WaitingJob, now_s: float) -> Reason | None:
        if job.is_held:
            return Reason.HELD
        if job.blocked_on:
            return Reason.DEPENDENCY
        earliest_s = own_time_s(job)
        if earliest_s > now_s:
            self._timers.set(job.job_id, earliest_s)
            return Reason.BACK_OFF if job.is_backing_off else Reason.NOT_BEFORE
        return Reason.USER_LIMIT if startable(job) == 0 else None

    def _ring(self, now_s: float) -> None:
        """Let jobs in whose time has come."""
        for job_id in self._timers.rung(now_s):
            job = self.waiting.get(job_id)
            if job is not None and (job.cheaper or self.gates.get(job_id) in TIMED):
                self._forget_waiting(job_id)
                self._set_waiting(job_id, job, now_s)

    def promise_of(self, job_id: JobId) -> Promise | None:
        """The promise that a job has, or None."""
        return self.promises.get(job_id)

    def next_timer_s(self) -> float | None:
        """When the next job's own time comes: of one that still waits for just that."""
        return self._timers.next_s(self._is_timed)

    def _is_timed(self, job_id: JobId, at_s: float) -> bool:
        job, found = self.waiting.get(job_id), self.class_of.get(job_id)
        gives_way = found is not None and found.key.gives_way
        return job is not None and is_timed(job, self.gates.get(job_id), at_s, gives_way=gives_way)

    def join(self, job_id: JobId, tasks: tuple[TaskPlacement, ...]) -> None:
        """Take what tasks hold that join a running job in this cycle."""
        super().join(job_id, tasks)
        job = self.running[job_id]
        if self.ground is not None:
            self.ground.add(tenant_of(self.tree, job), job_id, tasks)

    def fit(self, need: Need) -> Fit:
        """The columns of a need, kept for the needs used last."""
        return self.fits.of(need, self.table)
