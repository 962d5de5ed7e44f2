"""Health in the machine: faults, quarantine, gangs restarted on a spare, people overruling."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tercio.core.cluster import Cluster
from tercio.core.commands import to_events
from tercio.core.driver import Driver, DriverSettings
from tercio.core.story import tell
from tercio.errors import UserError
from tercio.model.commands import MoveNode, ResetBreaker, SetHealthPolicy, SubmitJob, UncordonNode
from tercio.model.effects import AnyEffect, LaunchTask, Notify, RepairNode, StopTask
from tercio.model.events import (
    AnyEvent,
    Entry,
    FaultCleared,
    FaultFound,
    HealthBreakerMoved,
    HealthDecided,
    HealthPolicyChanged,
    NodeHealthChanged,
    NodeRemoved,
    NodeRepairEnded,
    NodeReported,
    ServerStarted,
    SpareActivated,
    TaskExited,
    TaskStarted,
    subjects,
)
from tercio.model.health import FaultFact
from tercio.model.identity import Role
from tercio.model.ids import NodeName
from tercio.model.job import JobState
from tercio.testing import make_job, make_node, make_principal

ADMIN = make_principal("root", Role.ADMIN)


class World:
    """A driver with three nodes, the third a spare, whose engine does at once what it is told."""

    def __init__(self, nodes: int = 3, *, spares: int = 1, **settings: str | int | float) -> None:
        self.driver = Driver(Cluster(), settings=DriverSettings(is_validating=True))
        self.now_s = 1_000.0
        self.entries: list[Entry] = []
        self.effects: list[AnyEffect] = []
        start: list[AnyEvent] = [ServerStarted(at_s=self.now_s, epoch=1, version="test")]
        for number in range(1, nodes + 1):
            labels = {"spare": "true"} if number > nodes - spares else {}
            spec = make_node(f"n{number}", devices=1, labels=labels)
            start.append(NodeReported(at_s=self.now_s, spec=spec))
        self.step(start)
        if settings:
            self.command(SetHealthPolicy(settings=dict(settings)))

    def step(self, events: Iterable[AnyEvent] = ()) -> list[AnyEvent]:
        seen: list[AnyEvent] = []
        waiting = list(events)
        while True:
            step = self.driver.step(waiting, self.now_s)
            self.entries += step.entries
            self.effects += step.effects
            seen += [entry.event for entry in step.entries]
            waiting = [self.answer(e) for e in step.effects if isinstance(e, LaunchTask | StopTask)]
            if not waiting:
                return seen

    def answer(self, effect: LaunchTask | StopTask) -> AnyEvent:
        named = {"job_id": effect.job_id, "attempt": effect.attempt, "task": effect.task}
        if isinstance(effect, LaunchTask):
            return TaskStarted(at_s=self.now_s, effect_id=effect.effect_id, **named)
        return TaskExited(at_s=self.now_s, signal=15, **named)

    def command(self, command: object) -> list[AnyEvent]:
        events = to_events(self.driver.cluster, command, ADMIN, self.now_s)  # type: ignore[arg-type]
        return self.step(events)

    def gang(self) -> str:
        self.command(SubmitJob(spec=make_job(tasks=2)))
        job = next(iter(self.driver.cluster.jobs.values()))
        assert job.state is JobState.RUNNING
        return job.id

    def fault(self, node: str, code: str = "79", **fields: object) -> list[AnyEvent]:
        fact = {
            "id": f"{node}/{code}/{self.now_s}", "at_s": self.now_s, "fault_class": "xid",
            "code": code, "severity": "fatal", "action": "reboot_node", "serial": f"S-{node}",
            "device": 0, "meaning": "the GPU has fallen off the bus",
        } | fields  # fmt: skip
        event = FaultFound(at_s=self.now_s, node=NodeName(node), fault=FaultFact(**fact))  # type: ignore[arg-type]
        return self.step([event])

    def later(self, seconds: float) -> list[AnyEvent]:
        self.now_s += seconds
        return self.step()

    def state(self, node: str) -> str:
        record = self.driver.cluster.health.records.get(NodeName(node))
        return record.state if record else "ok"

    def nodes_of(self, job_id: str) -> list[str]:
        job = self.driver.cluster.jobs[job_id]  # type: ignore[index]
        return [task.placement.node for task in job.tasks]

    def owners(self, node: str) -> list[str]:
        return [c.owner for c in self.driver.cluster.nodes[NodeName(node)].cordons]


def test_a_dead_gpu_costs_one_node_swap() -> None:
    world = World(mode="act")
    job_id = world.gang()
    assert world.nodes_of(job_id) == ["n1", "n2"]
    world.fault("n2", job=job_id)
    assert world.state("n2") == "quarantined"
    assert world.owners("n2") == ["health"]
    job = world.driver.cluster.jobs[job_id]  # type: ignore[index]
    assert (job.state, job.attempt, job.retries) == (JobState.RUNNING, 2, 0)
    assert world.nodes_of(job_id) == ["n1", "n3"]
    stops = [e for e in world.effects if isinstance(e, StopTask)]
    assert all("n2 was taken out: Xid 79 on GPU 0 (serial S-n2)" in e.note for e in stops)
    mine = [e for e in world.entries if job_id in subjects(e.event)]
    told = [line.text for line in tell(mine, job_id)]
    fault = "Xid 79 on GPU 0 (serial S-n2): the GPU has fallen off the bus"
    assert f"node n2: quarantined: {fault}; {job_id} moves away" in told
    assert f"spare n3 takes the place of n2 for {job_id}" in told
    assert len(told) == 8, told
    assert "tasks 0, 1 of attempt 1 run" in told
    assert "tasks 0, 1 were ended by signal 15" in told


def test_no_spare_no_swap_and_the_gang_waits() -> None:
    world = World(nodes=2, spares=0, mode="act")
    job_id = world.gang()
    world.fault("n1")
    assert world.driver.cluster.jobs[job_id].state is JobState.QUEUED  # type: ignore[index]
    assert world.state("n1") == "quarantined"


def test_shadow_mode_says_it_and_does_nothing() -> None:
    world = World()
    assert world.driver.cluster.health.version == 0
    job_id = world.gang()
    seen = world.fault("n2")
    (decided,) = [e for e in seen if isinstance(e, HealthDecided)]
    assert (decided.order, decided.held_by, decided.jobs) == ("quarantine", "shadow", (job_id,))
    assert world.state("n2") == "suspect"
    assert world.owners("n2") == []
    assert world.driver.cluster.jobs[job_id].attempt == 1  # type: ignore[index]
    assert not [e for e in world.later(60) if isinstance(e, HealthDecided)]


def test_the_spare_is_not_used_before_it_is_needed() -> None:
    world = World(mode="act")
    world.gang()
    world.command(SubmitJob(spec=make_job(tasks=1)))
    waiting = list(world.driver.cluster.jobs.values())[1]
    assert waiting.state is JobState.QUEUED
    assert world.owners("n3") == ["spare"]


def test_the_label_makes_a_spare_and_unmakes_it() -> None:
    world = World(mode="act")
    plain = make_node("n3", devices=1)
    world.step([NodeReported(at_s=world.now_s, spec=plain)])
    assert world.owners("n3") == []
    spare = make_node("n3", devices=1, labels={"spare": "true"})
    world.step([NodeReported(at_s=world.now_s, spec=spare)])
    assert world.owners("n3") == ["spare"]
    world.command(UncordonNode(node=NodeName("n3")))
    assert world.owners("n3") == []


def test_the_repaired_node_is_kept_ready_in_the_place_of_its_spare() -> None:
    world = World(mode="act", repairs="command")
    world.gang()
    world.fault("n2")
    (order,) = [e for e in world.effects if isinstance(e, RepairNode)]
    assert (order.node, order.action) == ("n2", "reboot_node")
    assert world.state("n2") == "repairing"
    done = NodeRepairEnded(
        at_s=world.now_s, node=order.node, effect_id=order.effect_id, succeeded=True
    )
    world.step([done])
    assert world.state("n2") == "probation"
    assert world.owners("n2") == ["spare"]
    world.later(86_401.0)
    assert world.state("n2") == "ok"


def test_a_repair_that_fails_twice_goes_up_the_ladder() -> None:
    world = World(mode="act", repairs="command")
    for _ in range(2):
        world.fault("n1")
        order = [e for e in world.effects if isinstance(e, RepairNode)][-1]
        assert order.action == "reboot_node"
        world.now_s += 60
        world.step(
            [
                NodeRepairEnded(
                    at_s=world.now_s, node=order.node, effect_id=order.effect_id, succeeded=False
                )
            ]
        )
    assert world.state("n1") == "quarantined"
    last = [e.event for e in world.entries if isinstance(e.event, HealthDecided)][-1]
    assert (last.order, last.action) == ("alert", "inspect_hw")


def test_a_person_repairs_and_returns_the_node() -> None:
    world = World(mode="act")
    world.fault("n1")
    assert world.state("n1") == "quarantined"
    held = [e.event for e in world.entries if isinstance(e.event, HealthDecided)]
    assert [(e.order, e.held_by) for e in held] == [("repair", "person")]
    world.now_s += 60
    world.command(MoveNode(node=NodeName("n1"), to="return", reason="card swapped"))
    assert (world.state("n1"), world.owners("n1")) == ("ok", [])
    assert not world.later(120)


def test_a_person_quarantines_and_the_policy_leaves_it_there() -> None:
    world = World(mode="act")
    world.command(MoveNode(node=NodeName("n1"), to="quarantine", reason="smells burnt"))
    assert (world.state("n1"), world.owners("n1")) == ("quarantined", ["health"])
    world.later(10 * 86_400)
    assert world.state("n1") == "quarantined"
    with pytest.raises(UserError) as caught:
        world.command(MoveNode(node=NodeName("n2"), to="probation"))
    assert caught.value.code == "conflict"


def test_a_node_that_its_engine_takes_away_and_brings_again_stands_where_it_stood() -> None:
    world = World(mode="act")
    name = NodeName("n1")
    world.command(MoveNode(node=name, to="quarantine", reason="smells burnt"))
    before = world.driver.cluster.nodes[name]
    world.step([NodeRemoved(at_s=world.now_s, node=name)])
    world.now_s += 60
    world.step([NodeReported(at_s=world.now_s, spec=before.spec)])
    assert world.driver.cluster.nodes[name].cordons == before.cordons
    world.command(MoveNode(node=name, to="return", reason="new fan"))
    assert world.owners("n1") == []


def test_the_drain_budget_and_the_breaker_hold() -> None:
    world = World(nodes=10, spares=0, mode="act")
    world.fault("n1")
    world.fault("n2", code="95")
    assert [world.state(n) for n in ("n1", "n2")] == ["quarantined", "suspect"]
    seen = world.fault("n3", code="48")
    assert any(e.held_by == "breaker" for e in seen if isinstance(e, HealthDecided))
    assert world.driver.cluster.health.breaker_open_s is not None
    (moved,) = [e for e in world.command(ResetBreaker()) if isinstance(e, HealthBreakerMoved)]
    assert (moved.is_open, moved.by) == (False, "root")
    assert world.driver.cluster.health.breaker_open_s is None


def test_a_cleared_fault_returns_the_node() -> None:
    world = World(mode="act")
    world.fault("n1")
    (fault,) = world.driver.cluster.health.faults[NodeName("n1")]
    world.now_s += 5
    world.step([FaultCleared(at_s=world.now_s, node=NodeName("n1"), fault_id=fault.id)])
    assert world.state("n1") == "probation"


def test_a_policy_change_is_a_version_and_a_stale_one_is_refused() -> None:
    world = World(mode="act")
    (changed,) = [
        e for e in world.command(SetHealthPolicy(settings={"drain_budget_min": 2}))
        if isinstance(e, HealthPolicyChanged)
    ]  # fmt: skip
    assert changed.version == 2
    assert changed.settings == {"mode": "act", "drain_budget_min": 2}
    with pytest.raises(UserError, match="version 2, not 1"):
        world.command(SetHealthPolicy(settings={"mode": "shadow"}, if_version=1))


def test_an_unknown_code_touches_no_node() -> None:
    world = World(mode="act")
    world.fault("n1", code="9999", action="contact_support", severity="warning")
    assert world.state("n1") == "ok"
    assert world.owners("n1") == []


def test_quarantine_calls_the_webhook() -> None:
    world = World(mode="act", webhook="http://127.0.0.1:9/x")
    world.gang()
    world.fault("n2")
    (notice,) = [e for e in world.effects if isinstance(e, Notify)]
    assert (notice.body["node"], notice.body["event"]) == ("n2", "quarantined")
    assert notice.body["reason"].startswith("Xid 79")


def test_a_replay_and_an_image_end_in_the_same_state() -> None:
    world = World(mode="act")
    world.gang()
    world.fault("n2")
    again = Driver(Cluster())
    again.replay(world.entries)
    assert again.cluster.state_hash() == world.driver.cluster.state_hash()
    kept = Cluster.from_image(world.driver.cluster.image())
    assert kept.state_hash() == world.driver.cluster.state_hash()
    # After a restart nothing is decided or said a second time.
    step = Driver(kept).step((), world.now_s)
    assert not [e for e in step.entries if isinstance(e.event, HealthDecided | NodeHealthChanged)]
    assert not [e for e in step.entries if isinstance(e.event, SpareActivated)]


@pytest.mark.parametrize(
    ("settings", "field"),
    [({"mod": "act"}, "mod"), ({"mode": "go"}, "mode"), ({"drain_budget_ratio": 7}, None)],
)
def test_a_setting_that_makes_no_sense_is_refused(
    settings: dict[str, str | int | float], field: str | None
) -> None:
    with pytest.raises(UserError) as caught:
        World().command(SetHealthPolicy(settings=settings))
    assert caught.value.field == (field or "drain_budget_ratio")


@pytest.mark.parametrize(
    ("name", "value", "fix"),
    [
        ("mode", "go", "write one of shadow, act"),
        ("repairs", "me", "write one of person, command"),
        ("loop_count", "abc", "write a whole number"),
        ("drain_budget_ratio", "abc", "write a number"),
        ("webhook", "pager", "write an address such as https://pager.example.org/hook"),
        ("webhook", 7, "write an address such as https://pager.example.org/hook"),
    ],
)
def test_a_wrong_value_is_refused_with_what_would_be_right(
    name: str, value: str | int | float, fix: str
) -> None:
    with pytest.raises(UserError) as caught:
        World().command(SetHealthPolicy(settings={name: value}))
    assert f"{name}: {value!r} is not right" in caught.value.message
    assert fix in str(caught.value.hint)
