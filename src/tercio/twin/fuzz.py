"""The hunt for our own faults: a small drawn world full of trouble, then one that heals.

Safety first: while messages get lost, doubled and late, nodes fail, people meddle and the server
is killed, every checker holds after every event. Then liveness: all trouble stops, and every
job must come to its end. A seed names the whole run; the same seed gives the same journal.
The worlds are wide ones, of everything that a job and a policy may say, with ailments of nodes
and jobs or without them, or the plain ones of the first hunts. The seeds that found something
keep the kind of their world.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from tercio.core.cluster import Cluster
from tercio.core.commands import to_events
from tercio.core.driver import Driver, DriverSettings, Scheduler
from tercio.core.records import Job, is_preemptible
from tercio.errors import UserError
from tercio.model.commands import (
    AddReservation,
    AnyCommand,
    CancelJob,
    CordonNode,
    DrainNode,
    HoldJob,
    ReleaseJob,
    RemoveReservation,
    RequeueJob,
    ResumeJob,
    SetPolicy,
    SubmitJob,
    SuspendJob,
    UncordonNode,
)
from tercio.model.events import Entry, NodeReported, PolicyChanged, PricesRead, ServerStarted
from tercio.model.identity import Principal, Role
from tercio.model.ids import JobId
from tercio.model.job import TERMINAL_JOB_STATES, JobSpec, JobState, TimeSpec
from tercio.model.node import Node, NodeState
from tercio.model.queue import Flexible, Policy
from tercio.model.snapshot import Snapshot, WaitingJob
from tercio.sched.cycle import schedule
from tercio.twin import ailments, draws, wide
from tercio.twin.checkers import Books, Checked, Truth, Wards, check_replay, check_restore
from tercio.twin.coverage import coverage
from tercio.twin.engine import Engine
from tercio.twin.faults import Fault, Weather
from tercio.twin.loop import Loop, StuckError
from tercio.twin.rng import Stream
from tercio.twin.runs import TaskId
from tercio.twin.world import World

TROUBLE_S: Final = 5_000.0
HEALING_S: Final = 60_000.0
LONGEST_DOWN_S: Final = 1_000.0
START_S: Final = 1_000_000.0
_ALONE: Final = JobId("job-alone")
ROOT: Final = Principal(user="root", role=Role.ADMIN)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What one seed came to.

    Attributes:
        seed: see `hunt`.
        entries: journal entries of the run.
        journal_hash: of the whole journal; equal for equal seeds.
        fault: what was found, or None.
        at_s: when, in virtual time from the start.
        covered: how often what happened; see `tercio.twin.coverage`.
    """

    seed: int
    entries: int
    journal_hash: str
    fault: str | None = None
    at_s: float = 0.0
    covered: dict[str, int] = {}


def hunt(
    seed: int, *, jobs: int = 12, is_wide: bool = True, has_ailments: bool = True,
    scheduler: Scheduler | None = None,
) -> Finding:  # fmt: skip
    """Run one seed and return what was found. `scheduler` stands in the place of ours.

    Only wide worlds have ailments.
    """
    game = Game(seed, jobs=jobs, is_wide=is_wide, has_ailments=has_ailments, scheduler=scheduler)
    fault: str | None = None
    try:
        game.play()
    except Exception as error:  # whatever it is, the world found it
        fault = f"{type(error).__name__}: {error}"
    body = msgspec.json.encode(game.journal)
    return Finding(
        seed=seed,
        entries=len(game.journal),
        journal_hash=hashlib.sha256(body).hexdigest(),
        fault=fault,
        at_s=game.loop.now_s - START_S,
        covered=coverage(game.journal),
    )


class Game:
    """One run; see the module's description."""

    def __init__(
        self, seed: int, *, jobs: int, is_wide: bool, has_ailments: bool = True,
        scheduler: Scheduler | None = None,
    ) -> None:  # fmt: skip
        self.seed = seed
        self.is_wide = is_wide
        self.has_ailments = is_wide and has_ailments
        # Jobs are moved only while nobody else waits: some worlds have hardly any other jobs.
        self._profiled_ratio = Stream(seed, "kind").choice((0.25, 0.25, 0.95))
        self.stream = Stream(seed, "game")
        # One wide world of twelve has prices of power, drawn apart: old seeds knew none.
        self._prices = Stream(seed, "prices") if is_wide and seed % 12 == 0 else None
        self.journal: list[Entry] = []
        self._checked = Checked() if scheduler is None else Checked(scheduler)
        self.loop = Loop(
            self._driver(Cluster()), START_S, observers=(Books(), Wards()), journal=self.journal
        )
        stream = self.stream
        world = World(
            launch_s=stream.choice((0.0, 1.0, 30.0)),
            slow_start_ratio=0.1, slow_start_s=200.0, launch_failure_ratio=0.03,
            checkpoint_every_s=stream.choice((0.0, 60.0, None)), restart_s=5.0, stop_s=60.0,
            failure_ratio=0.1, lost_ratio=0.03, repeat_ratio=0.03,
            delay_s=stream.choice((0.0, 2.0, 50.0)),
        )  # fmt: skip
        self.engine = Engine(self.loop, world, seed=seed, watch=Truth())
        self.loop.perform = self.engine.perform
        self.engine.least_of = self._least_of
        nodes = Stream(seed, "nodes")
        self.nodes = wide.draw_nodes(nodes) if is_wide else draws.draw_nodes(nodes)
        if self.has_ailments:
            self.nodes = ailments.draw_conditions(nodes, self.nodes)
        self.weather = Weather(self.loop, self.engine, self.nodes, ())
        self._keys = Stream(seed, "keys")
        self._ailments = ailments.Ailments(self.loop, self.engine, self.nodes, self._ask, seed=seed)
        self._boot()
        self._set_policy()
        for node in self.nodes:
            self.loop.pending.append(NodeReported(at_s=START_S, spec=node))
        self.loop.settle()
        for _ in range(jobs):
            self._later(0.6 * TROUBLE_S, self._submit)
        for _ in range(jobs):
            self._later(0.9 * TROUBLE_S, self._meddle)
        for _ in range(1 + stream.whole(5)):
            self._later(0.9 * TROUBLE_S, self._strike)
        for _ in range(stream.whole(4)):
            self._later(0.9 * TROUBLE_S, self._kill)
        for _ in range(stream.whole(3) if is_wide else 0):
            self._later(0.7 * TROUBLE_S, self._reserve)
        if self._prices is not None:
            for _ in range(4):
                at_s = START_S + self._prices.uniform(0.0, 0.8 * TROUBLE_S)
                self.loop.at(at_s, self._read_prices, self._prices)
        if self.has_ailments:
            self._ailments.begin(START_S + 0.9 * TROUBLE_S)

    def play(self) -> None:
        """Trouble, then healing, then the final checks."""
        loop = self.loop
        loop.run(START_S + TROUBLE_S)
        self._calm()
        loop.run(START_S + TROUBLE_S + HEALING_S)
        for job in loop.driver.cluster.jobs.values():
            if job.state not in TERMINAL_JOB_STATES:
                raise StuckError(
                    f"{job.id} is {job.state.value} long after all trouble: {job.waited_message}"
                )
        if self.engine.live:
            raise StuckError(f"tasks run for nobody: {list(self.engine.live)}")
        check_replay(self.journal, loop.driver.cluster)
        cut = self.stream.whole(len(self.journal) + 1)
        check_restore(self.journal, cut, loop.driver.cluster)

    def _later(self, within_s: float, do: object) -> None:
        at_s = START_S + self.stream.uniform(0.0, within_s)
        self.loop.at(at_s, do, None)  # type: ignore[arg-type]

    def _driver(self, cluster: Cluster, seq: int = 0) -> Driver:
        return Driver(
            cluster, seq=seq, settings=DriverSettings(), seed=self.seed,
            scheduler=self._checked,
        )  # fmt: skip

    def _least_of(self, job_id: JobId) -> int:
        return self.loop.driver.cluster.jobs[job_id].spec.least_task_count

    # The server.

    def _boot(self) -> None:
        self.engine.epoch += 1
        epoch = self.engine.epoch
        self.loop.pending.append(ServerStarted(at_s=self.loop.now_s, epoch=epoch, version="twin"))
        self.loop.settle()
        for effect in self.loop.driver.reissue():
            self.engine.perform(effect)

    def _kill(self, _: None) -> None:
        """Kill the server, and start it from a checkpoint somewhere in its journal."""
        self.loop.pending.clear()
        cut = self.stream.whole(len(self.journal) + 1)
        before = self._driver(Cluster())
        before.replay(self.journal[:cut])
        driver = self._driver(Cluster.from_image(before.cluster.image()), before.seq)
        driver.replay(self.journal[cut:])
        self.loop.replace(driver)
        self._boot()
        self._tell_ends()

    def _tell_ends(self) -> None:
        """The engines tell a new server how the tasks ended that it takes for alive."""
        for key, report in self.engine.ended.items():
            if self._is_believed_live(key):
                self.loop.pending.append(report)

    def _is_believed_live(self, key: TaskId) -> bool:
        job = self.loop.driver.cluster.jobs.get(key[0])
        if job is None or job.attempt != key[1]:
            return False
        return any(task.placement.task == key[2] for task in job.live_tasks)

    # Trouble.

    def _set_policy(self) -> None:
        cluster = self.loop.driver.cluster
        self.loop.pending.append(
            PolicyChanged(
                at_s=self.loop.now_s, version=cluster.policy_version + 1,
                policy=self._draw_policy(), by="root",
            )
        )  # fmt: skip

    def _draw_policy(self) -> Policy:
        draw = wide.draw_policy if self.is_wide else draws.draw_policy
        policy = draw(self.stream, self.nodes)
        if self._prices is None:
            return policy
        by = self._prices.choice(tuple(Flexible))
        return msgspec.structs.replace(policy, flexible=by)

    def _draw_job(self, known: list[JobId]) -> JobSpec:
        if not self.is_wide:
            return draws.draw_job(self.stream, self.nodes, known)
        windows = [each.name for each in self.loop.driver.cluster.reservations.values()
                   if not each.nodes]  # fmt: skip
        has_elastic = self.loop.driver.cluster.policy.elastic is not None
        ratio = self._profiled_ratio if has_elastic else 0.0
        spec = wide.draw_job(self.stream, self.nodes, known, windows, profiled_ratio=ratio)
        if self.has_ailments:
            spec = ailments.draw_keys(self._keys, spec)
        if self._prices is None:
            return spec
        slack_s = self._prices.choice((None, 2000.0, 9000.0))
        time = msgspec.structs.replace(spec.time, flexible_s=slack_s)
        return msgspec.structs.replace(spec, time=time)

    def _submit(self, _: None) -> None:
        cluster = self.loop.driver.cluster
        known = [job_id for job_id in cluster.jobs if "." not in job_id]
        if known and self.stream.chance(0.4):
            spec = cluster.jobs[known[-1]].spec  # once more the same, so that ties occur
        else:
            spec = self._draw_job(known)
        by = ROOT
        if self.is_wide:
            role = Role.USER if spec.reservation is None else Role.OPERATOR
            by = Principal(user=self.stream.choice(wide.USERS), role=role)
        self._ask(SubmitJob(spec=spec, is_held=self.stream.chance(0.05)), by=by)

    def _meddle(self, _: None) -> None:
        jobs = list(self.loop.driver.cluster.jobs)
        if not jobs:
            return
        stream = self.stream
        if self.is_wide and stream.chance(0.7):
            jobs = [each.id for each in self.loop.driver.cluster.jobs.values()
                    if each.state not in TERMINAL_JOB_STATES] or jobs  # fmt: skip
        job, node = stream.choice(jobs), stream.choice(self.nodes).name
        commands: tuple[AnyCommand, ...] = (
            CancelJob(job_id=job), HoldJob(job_id=job), ReleaseJob(job_id=job),
            RequeueJob(job_id=job), SuspendJob(job_id=job), ResumeJob(job_id=job),
            CordonNode(node=node), DrainNode(node=node), UncordonNode(node=node),
            SetPolicy(policy=self._draw_policy()),
        )  # fmt: skip
        self._ask(stream.choice(commands))

    def _reserve(self, _: None) -> None:
        made = list(self.loop.driver.cluster.reservations)
        if made and self.stream.chance(0.2):
            self._ask(RemoveReservation(name=self.stream.choice(made)))
            return
        number = len(made)
        window = wide.draw_reservation(self.stream, self.nodes, number, self.loop.now_s)
        self._ask(AddReservation(reservation=window))

    def _read_prices(self, stream: Stream) -> None:
        series = wide.draw_prices(stream, self.loop.now_s)
        self.loop.pending.append(PricesRead(at_s=self.loop.now_s, series=series))
        self.loop.settle()

    def _ask(self, command: AnyCommand, *, by: Principal = ROOT) -> None:
        try:
            events = to_events(self.loop.driver.cluster, command, by, self.loop.now_s)
        except UserError:
            return
        self.loop.pending += events
        self.loop.settle()

    def _strike(self, _: None) -> None:
        stream = self.stream
        fault = Fault(
            node=stream.choice(self.nodes).name, at_s=self.loop.now_s,
            down_s=stream.choice((20.0, LONGEST_DOWN_S)), cause="no answer",
            is_crash=stream.chance(0.5),
        )  # fmt: skip
        if self.has_ailments and self._keys.chance(0.15):
            # It comes again when no order that was under way to it is: an engine drops those.
            fault = msgspec.structs.replace(fault, down_s=LONGEST_DOWN_S, is_removal=True)
        self.weather.strike(fault)

    # Healing.

    def _calm(self) -> None:
        """All trouble stops: every job must come to its end from here."""
        self.engine.set_world(World())
        if self.has_ailments:
            self._ailments.heal()
        if self.is_wide:
            self._open_up()
        self._open_nodes()
        if self.has_ailments:
            self.loop.at(self.loop.now_s + LONGEST_DOWN_S, self._heal_late, None)
        for job in list(self.loop.driver.cluster.jobs.values()):
            if job.is_held:
                self._ask(ReleaseJob(job_id=JobId(job.id)))
            if job.state is JobState.SUSPENDED:
                self._ask(ResumeJob(job_id=JobId(job.id)))

    def _open_nodes(self) -> None:
        for node in self.nodes:
            self._ask(UncordonNode(node=node.name))
            if self.has_ailments:
                self._ask(UncordonNode(node=node.name))  # the cordon of a spare comes last

    def _heal_late(self, _: None) -> None:
        """People see to the nodes, too, that their engines have only brought back by now."""
        self._ailments.heal()
        self._open_nodes()

    def _open_up(self) -> None:
        """No window, limit or budget is in the way of anybody any more."""
        cluster = self.loop.driver.cluster
        for name in list(cluster.reservations):
            self._ask(RemoveReservation(name=name))
        self._ask(SetPolicy(policy=wide.without_limits(cluster.policy)))
        for job in list(cluster.jobs.values()):
            if job.state not in TERMINAL_JOB_STATES and not self._can_ever_run(job):
                self._ask(CancelJob(job_id=JobId(job.id)))

    def _can_ever_run(self, job: Job) -> bool:
        """Whether the job, alone, finds a place on the empty cluster with every node up."""
        policy = self.loop.driver.cluster.policy
        waiting = WaitingJob(
            job_id=_ALONE, spec=msgspec.structs.replace(job.spec, array=None, time=TimeSpec()),
            queue=job.queue, user=job.user, tenant=job.tenant, priority=job.spec.priority,
            is_preemptible=is_preemptible(policy, job.queue, job.spec),
            submitted_s=self.loop.now_s, sequence=1,
        )  # fmt: skip
        nodes = {spec.name: Node(spec=spec, state=NodeState.READY) for spec in self.nodes}
        snapshot = Snapshot(revision=1, nodes=nodes, running={}, waiting={_ALONE: waiting})
        return bool(schedule(snapshot, policy, self.loop.now_s, 0).starts)
