"""The usage report adds up to the device-millisecond, on a week of jobs of every fate."""

from __future__ import annotations

import heapq
import itertools
import random

import msgspec
import pytest

from tercio.core.cluster import Cluster
from tercio.core.commands import to_events
from tercio.core.driver import Driver, DriverSettings
from tercio.core.report import Prices, use_report
from tercio.energy.series import parse_grid_csv
from tercio.model.commands import DrainNode, SubmitJob, UncordonNode
from tercio.model.effects import LaunchTask, StopTask
from tercio.model.events import (
    AnyEvent,
    Entry,
    JobPlaced,
    NodeReported,
    ServerStarted,
    TaskExited,
    TaskStarted,
)
from tercio.model.identity import Role
from tercio.model.ids import NodeName
from tercio.model.job import EndCause, JobState, RetrySpec
from tercio.model.readings import Marks, Measured
from tercio.model.report_views import CLASSES, UseReport
from tercio.testing import make_job, make_node, make_principal

WEEK_S = 7 * 86_400.0
START_S = 1_767_000_000.0
ROOT = make_principal("root", Role.ADMIN)


class Week:
    """A week of a small cluster: jobs that succeed, fail, are retried, drained and measured."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.driver = Driver(Cluster(), settings=DriverSettings(is_validating=True))
        self.now_s = START_S
        self.entries: list[Entry] = []
        self.queue: list[tuple[float, int, object]] = []
        self.count = itertools.count()
        self.wake_s = 0.0
        self.step([ServerStarted(at_s=self.now_s, epoch=1, version="t")])
        sites = ("here", "here", "west")
        nodes = [make_node(f"n{i}", devices=8, site=site) for i, site in enumerate(sites)]
        self.step([NodeReported(at_s=self.now_s, spec=spec) for spec in nodes])

    def later(self, after_s: float, what: object) -> None:
        heapq.heappush(self.queue, (self.now_s + after_s, next(self.count), what))

    def step(self, events: list[AnyEvent]) -> None:
        step = self.driver.step(events, self.now_s)
        self.entries += step.entries
        for effect in step.effects:
            if isinstance(effect, LaunchTask):
                self.later(self.random.uniform(1, 9), self.started(effect))
                self.later(self.random.uniform(10, 20_000), (effect, self.random.random() < 0.2))
            elif isinstance(effect, StopTask):
                self.later(self.random.uniform(0.1, 5), (effect, True))
        if step.wake_at_s is not None:
            at_s = max(step.wake_at_s, self.now_s + 0.5)
            if not self.now_s < self.wake_s <= at_s:
                self.wake_s = at_s
                self.later(at_s - self.now_s, None)

    def started(self, effect: LaunchTask) -> TaskStarted:
        return TaskStarted(
            at_s=self.now_s, job_id=effect.job_id, attempt=effect.attempt, task=effect.task,
            effect_id=effect.effect_id,
        )  # fmt: skip

    def ended(self, effect: LaunchTask | StopTask, *, is_bad: bool) -> TaskExited:
        draw = self.random.uniform
        marks = measured = None
        if draw(0, 1) < 0.7:
            first_s = self.now_s - draw(0, 3000)
            marks = Marks(
                step_count=9, first_step_s=first_s, last_step_s=self.now_s,
                checkpoints=((first_s + 10, first_s + 10 + draw(0, 30)),),
            )  # fmt: skip
        if draw(0, 1) < 0.7:
            seen = (self.now_s - draw(1000, 3000), self.now_s)
            low = (seen[0] + 100, seen[0] + 100 + draw(60, 800))
            measured = Measured(
                energy_mj=int(draw(1e6, 1e9)), energy_source="counter", seen=(seen,), low=(low,)
            )
        return TaskExited(
            at_s=self.now_s, job_id=effect.job_id, attempt=effect.attempt, task=effect.task,
            exit_code=1 if is_bad else 0, marks=marks, measured=measured,
        )  # fmt: skip

    def run(self) -> None:
        for _ in range(150):
            spec = make_job(
                tasks=self.random.randint(1, 3), devices=self.random.choice((1, 2, 4)),
                retry=RetrySpec(on=(EndCause.FAILED,), max=1, backoff_s=30.0),
            )  # fmt: skip
            user = make_principal(self.random.choice(("ana", "bob")))
            self.later(self.random.uniform(0, WEEK_S * 0.9), (SubmitJob(spec=spec), user))
        for day in range(6):
            node = NodeName(f"n{day % 3}")
            self.later(day * 86_400 + 40_000.0, (DrainNode(node=node), ROOT))
            self.later(day * 86_400 + 50_000.0, (UncordonNode(node=node), ROOT))
        while self.queue and self.queue[0][0] < START_S + WEEK_S:
            self.now_s, _, what = heapq.heappop(self.queue)
            match what:
                case None if self.now_s >= self.wake_s:
                    self.step([])
                case None:
                    pass  # an earlier wake came in its place
                case TaskStarted():
                    self.step([what])
                case (LaunchTask() | StopTask() as effect, bool(is_bad)):
                    self.step([self.ended(effect, is_bad=is_bad)])
                case (command, principal):
                    cluster = self.driver.cluster
                    self.step(to_events(cluster, command, principal, self.now_s))
        self.now_s = START_S + WEEK_S

    def report(
        self, by: str, *, since_s: float = 0.0, prices: Prices | None = None,
        site: str | None = None,
    ) -> UseReport:  # fmt: skip
        cluster = self.driver.cluster
        return use_report(
            cluster, cluster.jobs.values(), by=by, since_s=since_s, now_s=self.now_s,
            prices=prices or Prices(), site=site,
        )  # fmt: skip

    def held_ms(self, since_s: float = 0.0) -> int:
        """Device time by the journal alone: from each placing to each first exit."""
        open_s: dict[tuple[str, int, int], tuple[float, int]] = {}
        total = 0
        for event in (entry.event for entry in self.entries):
            if isinstance(event, JobPlaced):
                for task in event.tasks:
                    key = (event.job_id, event.attempt, task.task)
                    open_s[key] = (event.at_s, sum(share.milli for share in task.devices))
            elif isinstance(event, TaskExited):
                held = open_s.pop((event.job_id, event.attempt, event.task), None)
                if held is not None:
                    total += self.ms(held[0], event.at_s, since_s) * held[1]
        total += sum(self.ms(at_s, self.now_s, since_s) * m for at_s, m in open_s.values())
        assert total % 1000 == 0
        return total // 1000

    def ms(self, start_s: float, stop_s: float, since_s: float) -> int:
        return max(0, round(stop_s * 1000) - round(max(start_s, since_s) * 1000))


@pytest.fixture(scope="module")
def week() -> Week:
    week = Week(seed=7)
    week.run()
    return week


@pytest.mark.parametrize("by", ["user", "queue", "job"])
@pytest.mark.parametrize("since_s", [0.0, START_S + 3.3 * 86_400])
def test_allocated_is_the_sum_of_the_waterfall_exactly(week: Week, by: str, since_s: float) -> None:
    report = week.report(by, since_s=since_s)
    assert report.total.allocated_ms == week.held_ms(since_s) > 0
    for row in (*report.rows, report.total):
        assert row.allocated_ms == sum(getattr(row, name) or 0 for name in CLASSES), row.key
        assert min(getattr(row, name) or 0 for name in CLASSES) >= 0
    for name in ("allocated_ms", "energy_mj", "jobs", *CLASSES):
        parts = [getattr(row, name) or 0 for row in report.rows]
        assert sum(parts) == (getattr(report.total, name) or 0), name


def test_the_week_met_every_fate(week: Week) -> None:
    states = {job.state for job in week.driver.cluster.jobs.values()}
    assert {JobState.SUCCEEDED, JobState.FAILED} <= states
    total = week.report("user").total
    named = {name for name in CLASSES if getattr(total, name)}
    assert named >= {
        "starting_ms", "restarting_ms", "stopping_ms", "checkpoint_ms", "lost_ms", "failed_ms",
        "idle_ms", "useful_ms",
    }  # fmt: skip


def test_free_and_allocated_are_the_capacity(week: Week) -> None:
    report = week.report("user", since_s=START_S)
    assert report.capacity_ms == 24 * int(WEEK_S * 1000)
    assert report.free_ms + report.total.allocated_ms == report.capacity_ms


@pytest.mark.parametrize("since_s", [0.0, START_S + 3.3 * 86_400])
def test_what_the_sites_had_is_what_all_had(week: Week, since_s: float) -> None:
    here, west = (week.report("user", since_s=since_s, site=site) for site in ("here", "west"))
    both = week.report("user", since_s=since_s)
    assert min(here.total.allocated_ms, west.total.allocated_ms) > 0
    for name in ("allocated_ms", "energy_mj", "lost_ms", "failed_ms", "useful_ms"):
        parts = [getattr(site.total, name) for site in (here, west)]
        assert sum(parts) == getattr(both.total, name), name
    assert here.capacity_ms + west.capacity_ms == both.capacity_ms
    assert west.capacity_ms * 2 == here.capacity_ms
    assert week.report("user", site="moon").rows == ()


def test_an_attempt_that_noted_no_site_is_where_its_job_was(week: Week) -> None:
    cluster, west = week.driver.cluster, week.report("job", site="west")
    old = [
        msgspec.structs.replace(
            job,
            past=tuple(
                msgspec.structs.replace(
                    span, held=tuple(msgspec.structs.replace(h, site="") for h in span.held)
                )
                for span in job.past
            ),
        )
        for job in cluster.jobs.values()
        if len(job.past) == 1
    ]
    said = use_report(
        cluster, old, by="job", since_s=0.0, now_s=week.now_s, prices=Prices(), site="west"
    )
    names = {job.id for job in old}
    assert said.rows == tuple(row for row in west.rows if row.key in names) != ()


def test_energy_cost_and_carbon(week: Week) -> None:
    rows = "".join(f"{START_S - 3600 + hour * 3600:.0f},400,0.10\n" for hour in range(24 * 8))
    grid = parse_grid_csv("hour,gco2_per_kwh,usd_per_kwh\n" + rows)
    total = week.report("user", prices=Prices(pue=1.2, grid=grid)).total
    kwh = total.energy_mj / 3.6e9 * 1.2
    assert total.energy_kwh == pytest.approx(kwh)
    assert total.cost_usd == pytest.approx(kwh * 0.10)
    assert total.carbon_kg == pytest.approx(kwh * 0.4)
    priced = week.report("user", prices=Prices(device_usd_per_hour=2.0)).total
    assert priced.cost_usd == pytest.approx(priced.allocated_ms / 3_600_000 * 2.0)
    assert week.report("user").total.cost_usd is None


def test_without_readings_idle_is_unknown() -> None:
    week = Week(seed=1)
    week.ended = lambda effect, *, is_bad: TaskExited(  # type: ignore[method-assign]
        at_s=week.now_s, job_id=effect.job_id, attempt=effect.attempt, task=effect.task,
        exit_code=int(is_bad),
    )  # fmt: skip
    week.run()
    total = week.report("user").total
    assert total.idle_ms is None
    assert total.energy_kwh is None
    assert total.unobserved_ms == total.useful_ms > 0


def test_the_week_replayed_from_its_journal_says_the_same(week: Week) -> None:
    """Entries as the journal keeps them, and a checkpoint half-way with the rest after it."""
    kept = [
        msgspec.msgpack.decode(msgspec.msgpack.encode(entry), type=Entry) for entry in week.entries
    ]
    whole = Driver(Cluster())
    whole.replay(kept)
    half = Driver(Cluster())
    half.replay(kept[: len(kept) // 2])
    rest = Driver(Cluster.from_image(half.cluster.image()), seq=half.seq)
    rest.replay(kept[len(kept) // 2 :])
    for by in ("user", "queue", "job"):
        said = week.report(by)
        for cluster in (whole.cluster, rest.cluster):
            again = use_report(
                cluster, cluster.jobs.values(), by=by, since_s=0.0, now_s=week.now_s,
                prices=Prices(),
            )  # fmt: skip
            assert again == said
    assert said.total.allocated_ms == week.held_ms()
