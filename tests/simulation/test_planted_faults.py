"""Deliberately planted faults, each caught by a checker of the hunt.

| planted fault | caught by |
|---|---|
| a release that is lost | the ledger differs from what the tasks hold |
| a job started twice by a plan | started_once |
| an engine that starts a repeated order again | no task is started twice |
| a fence that is ignored: lost tasks are replaced at once | no two attempts at once |
| an order of an earlier server run | the engine refuses it |
| a broken tie-break: the youngest first | in_turn |
| starts in an order that changes from call to call | same plan without a memory |
| an explanation that does not agree with the outcome | explained |
| a job lost at submit | no job is lost |
| a change that is not journalled | the journal leads to the same state |
| a back-off that never ends | every job comes to its end |
| dependents that are never told | every job comes to its end |
| a gang that starts without one task | gangs |
| a job stopped for nobody | evictions_enable |
| a node filter, an image or a site that is ignored | places |
| a gang on a node on trial | places |
| a quarantine without its cordon | health and cordons agree |
| nodes taken out beyond the drain budget | the drain budget holds |
"""

from __future__ import annotations

import bisect
from collections.abc import Callable

import msgspec
import pytest

from tercio.core import attempts, endings, fleet, requests
from tercio.core.cluster import Cluster
from tercio.core.driver import Driver
from tercio.core.ledger import Ledger
from tercio.health.book import HealthBook
from tercio.health.policy import HeldBy
from tercio.model.effects import LaunchTask
from tercio.model.events import JobEvicted, JobSubmitted, TaskStarted
from tercio.model.health import HEALTH_OWNER
from tercio.model.reasons import Outcome
from tercio.sched import memory
from tercio.sched.classes import JobClass, Member
from tercio.sched.cycle import schedule
from tercio.sched.explain import Briefs
from tercio.sched.feasible import Fit
from tercio.sched.memory import Memory
from tercio.sched.plan import Plan
from tercio.twin.engine import Engine
from tercio.twin.fuzz import hunt

MOST_SEEDS = 60

Patch = pytest.MonkeyPatch


def lost_release(patch: Patch) -> None:
    whole = Ledger.release

    def release(self: Ledger, task, ports) -> None:  # type: ignore[no-untyped-def]
        if self.nodes[task.node].task_count != 3:
            whole(self, task, ports)

    patch.setattr(Ledger, "release", release)


def starts_again(patch: Patch) -> None:
    """The engine forgets that it runs the task already."""
    launch = Engine._launch

    def again(self: Engine, order: LaunchTask) -> None:
        key = (order.job_id, order.attempt, order.task)
        if key in self.live:
            self._hold(key, order)
        else:
            launch(self, order)

    patch.setattr(Engine, "_launch", again)


def ignored_fence(patch: Patch) -> None:
    """What a lost node ran is taken as gone the moment contact is lost."""
    lost = fleet.lost

    def at_once(state, event) -> None:  # type: ignore[no-untyped-def]
        lost(state, event)
        attempts.lose_tasks(state, event.node, event.at_s, "not waited for")

    patch.setattr(fleet, "lost", at_once)


def youngest_first(patch: Patch) -> None:
    def add(self: JobClass, job) -> None:  # type: ignore[no-untyped-def]
        self._entry = None
        bisect.insort(
            self.members,
            Member(job.submitted_s, job.sequence, job.job_id),
            key=lambda member: -member.sequence,
        )

    def remove(self: JobClass, job) -> None:  # type: ignore[no-untyped-def]
        self._entry = None
        self.members = [member for member in self.members if member.job_id != job.job_id]

    patch.setattr(JobClass, "add", add)
    patch.setattr(JobClass, "remove", remove)


def explanation_differs(patch: Patch) -> None:
    placed = Briefs._placed

    def lie(self: Briefs, start):  # type: ignore[no-untyped-def]
        return msgspec.structs.replace(placed(self, start), outcome=Outcome.WAITING)

    patch.setattr(Briefs, "_placed", lie)


def lost_job(patch: Patch) -> None:
    submitted = requests.submitted

    def forgetful(state, event: JobSubmitted) -> None:  # type: ignore[no-untyped-def]
        submitted(state, event)
        if state.jobs_submitted == 5:
            state.jobs.pop(event.job_id)
            state.waiting.pop(event.job_id, None)

    patch.setattr(requests, "submitted", forgetful)


def not_journalled(patch: Patch) -> None:
    take = Driver._take

    def drop(self: Driver, event) -> None:  # type: ignore[no-untyped-def]
        take(self, event)
        if isinstance(event, JobEvicted | TaskStarted):
            self._entries.pop()

    patch.setattr(Driver, "_take", drop)


def endless_back_off(patch: Patch) -> None:
    patch.setattr(Memory, "_ring", lambda self, now_s: None)


def forgets_to_tell_dependents(patch: Patch) -> None:
    patch.setattr(endings, "_release_dependents", lambda state, job: None)


FAULTS: dict[str, tuple[Callable[[Patch], None], str]] = {
    "lost release": (lost_release, "ledger"),
    "engine starts a repeated order again": (starts_again, "started twice"),
    "ignored fence": (ignored_fence, "while"),
    "youngest first": (youngest_first, "started before"),
    "explanation differs": (explanation_differs, "told to wait"),
    "lost job": (lost_job, "lost"),
    "not journalled": (not_journalled, "another state"),
    "endless back-off": (endless_back_off, ""),
    "dependents wait for ever": (forgets_to_tell_dependents, "long after all trouble"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught(name: str, monkeypatch: Patch) -> None:
    plant, words = FAULTS[name]
    plant(monkeypatch)
    found = next((f for seed in range(MOST_SEEDS) if (f := hunt(seed, is_wide=False)).fault), None)
    assert found is not None, f"{MOST_SEEDS} seeds did not find it"
    assert found.fault is not None
    assert words in found.fault


def ignored_filter(patch: Patch) -> None:
    patch.setattr(Fit, "_allows", lambda self, spec: True)


def gangs_on_trial(patch: Patch) -> None:
    patch.setattr(memory, "is_small", lambda spec: True)


def lost_cordon(patch: Patch) -> None:
    put = fleet.put_cordon

    def forgetful(state, name, cordon) -> None:  # type: ignore[no-untyped-def]
        if cordon.owner != HEALTH_OWNER:
            put(state, name, cordon)

    patch.setattr(fleet, "put_cordon", forgetful)


def no_drain_budget(patch: Patch) -> None:
    held = HealthBook._held

    def all_goes(self: HealthBook, node, need):  # type: ignore[no-untyped-def]
        found = held(self, node, need)
        return None if found is HeldBy.DRAIN_BUDGET else found

    patch.setattr(HealthBook, "_held", all_goes)


AILING: dict[str, tuple[Callable[[Patch], None], str]] = {
    "ignored filter": (ignored_filter, "may not run on"),
    "gangs on trial": (gangs_on_trial, "is too much for"),
    "lost cordon": (lost_cordon, "taken out by health"),
    "no drain budget": (no_drain_budget, "that may be"),
}


@pytest.mark.parametrize("name", AILING)
def test_a_fault_planted_in_a_world_of_ailments_is_caught(name: str, monkeypatch: Patch) -> None:
    plant, words = AILING[name]
    plant(monkeypatch)
    faults = (hunt(seed).fault or "" for seed in range(MOST_SEEDS))
    assert any(words in fault for fault in faults), f"{MOST_SEEDS} seeds did not find it"


def starts_a_running_job(snapshot, policy, now_s, seed, memory) -> Plan:  # type: ignore[no-untyped-def]
    plan = schedule(snapshot, policy, now_s, seed, memory)
    return msgspec.structs.replace(plan, starts=plan.starts + plan.starts[:1])


def leaves_a_task_out(snapshot, policy, now_s, seed, memory) -> Plan:  # type: ignore[no-untyped-def]
    plan = schedule(snapshot, policy, now_s, seed, memory)
    starts = tuple(
        msgspec.structs.replace(start, tasks=start.tasks[1:]) if len(start.tasks) > 1 else start
        for start in plan.starts
    )
    return msgspec.structs.replace(plan, starts=starts)


class Fickle:
    """Gives every fifth start to another device than a scheduler without a memory would."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, snapshot, policy, now_s, seed, memory) -> Plan:  # type: ignore[no-untyped-def]
        self.calls += 1
        plan = schedule(snapshot, policy, now_s, seed, memory)
        if self.calls % 5 == 0 and len(plan.starts) > 1:
            return msgspec.structs.replace(plan, starts=plan.starts[::-1])
        return plan


def stops_for_nobody(snapshot, policy, now_s, seed, memory) -> Plan:  # type: ignore[no-untyped-def]
    plan = schedule(snapshot, policy, now_s, seed, memory)
    evictions = tuple(
        msgspec.structs.replace(each, for_job="job-nobody") for each in plan.evictions
    )
    return msgspec.structs.replace(plan, evictions=evictions)


@pytest.mark.parametrize(
    ("scheduler", "words"),
    [
        (starts_a_running_job, "twice"),
        (leaves_a_task_out, ""),
        (Fickle(), ""),
        (stops_for_nobody, "enables nothing"),
    ],
)
def test_a_scheduler_that_breaks_a_rule_is_caught(scheduler, words: str) -> None:  # type: ignore[no-untyped-def]
    faults = [
        f.fault
        for seed in range(MOST_SEEDS)
        if (f := hunt(seed, is_wide=False, scheduler=scheduler)).fault
    ]
    assert faults
    assert any(words in fault for fault in faults)


def test_an_order_of_an_earlier_server_is_refused() -> None:
    """The other half of the fence: an engine takes no order from before the restart."""
    from tercio.model.ids import EffectId, JobId, NodeName, SiteName
    from tercio.twin.loop import Loop
    from tercio.twin.world import World

    loop = Loop(Driver(Cluster()), 0.0)
    engine = Engine(loop, World())
    engine.epoch = 2
    order = LaunchTask(
        effect_id=EffectId("launch:job-00001/1/0"), epoch=1, deadline_s=9.0, site=SiteName("sim"),
        node=NodeName("n1"), job_id=JobId("job-00001"), attempt=1, task=0, user="ana",
        command="true",
    )  # fmt: skip
    engine.perform(order)
    assert not engine.live
    engine.perform(msgspec.structs.replace(order, epoch=2))
    assert engine.live
