"""The hunt for our own faults: a small drawn world full of trouble, then one that heals.

Safety first: while messages get lost, doubled and late, nodes fail, people meddle and the server
is killed, every checker holds after every event. Then liveness: all trouble stops, and every
job must come to its end. A seed names the whole run; the same seed gives the same journal.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from tercio.core.cluster import Cluster
from tercio.core.commands import to_events
from tercio.core.driver import Driver, DriverSettings, Scheduler
from tercio.errors import TercioError, UserError
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
from tercio.model.events import Entry, NodeReported, PolicyChanged, ServerStarted
from tercio.model.identity import Principal, Role
from tercio.model.ids import JobId
from tercio.model.job import TERMINAL_JOB_STATES, JobState
from tercio.twin.checkers import Books, Checked, Truth, check_replay, check_restore
from tercio.twin.draws import draw_job, draw_nodes, draw_policy
from tercio.twin.engine import Engine, TaskId
from tercio.twin.faults import Fault, Weather
from tercio.twin.loop import Loop, StuckError
from tercio.twin.rng import Stream
from tercio.twin.world import World

TROUBLE_S: Final = 5_000.0
HEALING_S: Final = 60_000.0
START_S: Final = 1_000_000.0
ROOT: Final = Principal(user="root", role=Role.ADMIN)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What one seed came to.

    Attributes:
        seed: see `hunt`.
        entries: journal entries of the run.
        journal_hash: of the whole journal; equal for equal seeds.
        fault: what was found, or None.
        at_s: when, in virtual time from the start.
    """

    seed: int
    entries: int
    journal_hash: str
    fault: str | None = None
    at_s: float = 0.0


def hunt(seed: int, *, jobs: int = 12, scheduler: Scheduler | None = None) -> Finding:
    """Run one seed and return what was found. `scheduler` stands in the place of ours."""
    game = Game(seed, jobs=jobs, scheduler=scheduler)
    fault: str | None = None
    try:
        game.play()
    except (TercioError, AssertionError, StuckError, KeyError, IndexError, ValueError) as error:
        fault = f"{type(error).__name__}: {error}"
    body = msgspec.json.encode(game.journal)
    return Finding(
        seed=seed,
        entries=len(game.journal),
        journal_hash=hashlib.sha256(body).hexdigest(),
        fault=fault,
        at_s=game.loop.now_s - START_S,
    )


class Game:
    """One run; see the module's description."""

    def __init__(self, seed: int, *, jobs: int, scheduler: Scheduler | None = None) -> None:
        self.seed = seed
        self.stream = Stream(seed, "game")
        self.journal: list[Entry] = []
        self._checked = Checked() if scheduler is None else Checked(scheduler)
        self.loop = Loop(
            self._driver(Cluster()), START_S, observers=(Books(),), journal=self.journal
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
        self.nodes = draw_nodes(Stream(seed, "nodes"))
        self.weather = Weather(self.loop, self.engine, self.nodes, ())
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
        return self.loop.driver.cluster.jobs[job_id].spec.task_count

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
                policy=draw_policy(self.stream, self.nodes), by="root",
            )
        )  # fmt: skip

    def _submit(self, _: None) -> None:
        cluster = self.loop.driver.cluster
        known = [job_id for job_id in cluster.jobs if "." not in job_id]
        if known and self.stream.chance(0.4):
            spec = cluster.jobs[known[-1]].spec  # once more the same, so that ties occur
        else:
            spec = draw_job(self.stream, self.nodes, known)
        self._ask(SubmitJob(spec=spec, is_held=self.stream.chance(0.05)))

    def _meddle(self, _: None) -> None:
        jobs = list(self.loop.driver.cluster.jobs)
        if not jobs:
            return
        stream = self.stream
        job, node = stream.choice(jobs), stream.choice(self.nodes).name
        commands: tuple[AnyCommand, ...] = (
            CancelJob(job_id=job), HoldJob(job_id=job), ReleaseJob(job_id=job),
            RequeueJob(job_id=job), SuspendJob(job_id=job), ResumeJob(job_id=job),
            CordonNode(node=node), DrainNode(node=node), UncordonNode(node=node),
            SetPolicy(policy=draw_policy(stream, self.nodes)),
        )  # fmt: skip
        self._ask(stream.choice(commands))

    def _ask(self, command: AnyCommand) -> None:
        try:
            events = to_events(self.loop.driver.cluster, command, ROOT, self.loop.now_s)
        except UserError:
            return
        self.loop.pending += events
        self.loop.settle()

    def _strike(self, _: None) -> None:
        stream = self.stream
        self.weather.strike(
            Fault(
                node=stream.choice(self.nodes).name, at_s=self.loop.now_s,
                down_s=stream.choice((20.0, 1000.0)), cause="no answer",
                is_crash=stream.chance(0.5),
            )
        )  # fmt: skip

    # Healing.

    def _calm(self) -> None:
        """All trouble stops: every job must come to its end from here."""
        self.engine.set_world(World())
        for node in self.nodes:
            self._ask(UncordonNode(node=node.name))
        for job in list(self.loop.driver.cluster.jobs.values()):
            if job.is_held:
                self._ask(ReleaseJob(job_id=JobId(job.id)))
            if job.state is JobState.SUSPENDED:
                self._ask(ResumeJob(job_id=JobId(job.id)))
