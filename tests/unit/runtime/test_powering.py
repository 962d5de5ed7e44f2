"""Power budgets kept by limits: ordered in the journal, carried out by agents, never passed."""

from __future__ import annotations

import msgspec
import pytest

from tercio.core.cluster import Cluster
from tercio.core.driver import Driver
from tercio.core.invariants import check
from tercio.core.story import sentence
from tercio.model.events import (
    HealthPolicyChanged,
    JobSubmitted,
    NodeReported,
    PolicyChanged,
    PowerCapped,
    ServerStarted,
)
from tercio.model.ids import JobId, NodeName, QueuePath
from tercio.model.job import JobState
from tercio.model.power import CapOrders, PowerRange
from tercio.model.queue import Policy, PowerBudget
from tercio.model.readings import DeviceTelemetry, NodeReading
from tercio.model.reasons import Reason
from tercio.runtime.powering import Powering
from tercio.runtime.telemetry import Telemetry
from tercio.runtime.turn import admitted
from tercio.testing import make_job, make_node

BOUNDS = PowerRange(min_w=200, max_w=700, default_w=700)


class Agent:
    """One node's agent: it sets what the last answer said, then reads and tells."""

    def __init__(self, name: str, devices: int) -> None:
        self.name = NodeName(name)
        self.limits_w = dict.fromkeys((f"{name}-{i}" for i in range(devices)), 700)
        self.orders: CapOrders | None = None
        self.is_up = True

    def reading(self) -> NodeReading:
        if self.orders is None:
            self.limits_w = dict.fromkeys(self.limits_w, 700)
        else:
            self.limits_w.update(self.orders.limits)
        devices = tuple(
            DeviceTelemetry(index=i, uuid=uuid, power_limit_w=float(limit), power_range=BOUNDS)
            for i, (uuid, limit) in enumerate(self.limits_w.items())
        )
        revision = 0 if self.orders is None else self.orders.revision
        return NodeReading(at_s=0.0, devices=devices, caps_revision=revision)


class Row:
    """Two nodes of two devices in one row, with their agents, on one server."""

    def __init__(self, *, budget_w: int, power: str = "act") -> None:
        self.now_s = 1000.0
        self.driver = Driver(Cluster())
        self.agents = [Agent("n1", 2), Agent("n2", 2)]
        self.orders: list[PowerCapped] = []
        self.step(ServerStarted(at_s=self.now_s, epoch=1, version="t"))
        for agent in self.agents:
            spec = make_node(agent.name, devices=2, labels={"rack": "row-a"})
            powered = tuple(
                msgspec.structs.replace(device, power_w=700, uuid=f"{agent.name}-{device.index}")
                for device in spec.devices
            )
            self.step(
                NodeReported(at_s=self.now_s, spec=msgspec.structs.replace(spec, devices=powered))
            )
        self.budget(budget_w)
        self.set(power=power)
        self.telemetry = Telemetry(
            cluster=lambda: self.driver.cluster,
            deliver=self.step,
            now=lambda: self.now_s,
            poll_s=10.0,
        )
        self.powering = Powering(
            driver=lambda: self.driver, telemetry=self.telemetry, deliver=self.step,
            now=lambda: self.now_s, poll_s=10.0,
        )  # fmt: skip

    def budget(self, budget_w: int) -> None:
        policy = Policy(
            budgets=(PowerBudget(domain="row-a", power_w=budget_w),),
        )
        version = self.driver.cluster.policy_version + 1
        self.step(PolicyChanged(at_s=self.now_s, version=version, policy=policy, by="root"))

    def set(self, **settings: str | float) -> None:
        version = self.driver.cluster.health.version + 1
        self.step(
            HealthPolicyChanged(at_s=self.now_s, version=version, settings=settings, by="root")
        )

    def step(self, event: object) -> None:
        fact = admitted(self.driver.cluster, event, self.now_s)  # type: ignore[arg-type]
        if fact is None:
            return
        if isinstance(fact, PowerCapped):
            self.orders.append(fact)
        self.driver.step([fact], self.now_s)
        check(self.driver.cluster)

    def submit(self, job_id: str, *, devices: int = 2, **fields: object) -> JobId:
        spec = make_job(devices=devices, **fields)
        self.step(
            JobSubmitted(
                at_s=self.now_s, job_id=JobId(job_id), spec=spec, queue=QueuePath("default"),
                user="ana", tenant="default",
            )
        )  # fmt: skip
        return JobId(job_id)

    def poll(self, times: int = 1) -> None:
        """Let agents read and tell, and the server look, so many times."""
        for _ in range(times):
            self.now_s += 10.0
            for agent in self.agents:
                if agent.is_up:
                    self.telemetry.take((agent.name,), agent.reading())
                    agent.orders = self.powering.orders((agent.name,))
            self.powering.look()
            assert self.used_w() <= self.budget_w, "the limits in force pass the budget"

    budget_w = 10_000

    def used_w(self) -> int:
        """Watts that the devices in use may draw by the limits that are in force."""
        nodes = {agent.name: agent for agent in self.agents}
        total = 0
        for job in self.driver.cluster.snapshot().running.values():
            for task in job.tasks:
                for share in task.devices:
                    total += nodes[task.node].limits_w[f"{task.node}-{share.index}"]
        return total

    def caps(self) -> list[int]:
        return [
            cap.limit_w
            for node in self.driver.cluster.nodes.values()
            for cap in (node.caps.devices if node.caps else ())
        ]


def test_a_budget_admits_more_devices_at_lower_limits_and_is_never_passed() -> None:
    row = Row(budget_w=2000)
    row.poll(6)
    row.budget_w = 2000
    assert row.caps() == [420] * 4, "free devices wait at their floor"
    first = row.submit("job-00001")
    row.poll(10)
    assert row.driver.cluster.jobs[first].state is not JobState.QUEUED
    assert sorted(row.caps()) == [420, 420, 700, 700]
    second = row.submit("job-00002")
    assert row.driver.cluster.jobs[second].state is JobState.QUEUED
    assert row.driver.briefs[second].reason is Reason.POWER
    row.poll(4)
    assert row.driver.cluster.jobs[second].state is not JobState.QUEUED, "room was made for it"
    row.poll(10)
    assert row.caps() == [500] * 4


def test_without_control_a_budget_holds_jobs_back_at_full_power() -> None:
    row = Row(budget_w=2000, power="off")
    row.poll(6)
    row.submit("job-00001")
    waiting = row.submit("job-00002")
    row.poll(5)
    assert row.driver.briefs[waiting].reason is Reason.POWER
    assert row.orders == []


def test_shadow_shows_the_plan_and_orders_nothing() -> None:
    row = Row(budget_w=2000, power="shadow")
    row.poll(6)
    assert row.orders == []
    assert all(agent.limits_w == dict.fromkeys(agent.limits_w, 700) for agent in row.agents)
    assert set(row.powering.view().plan.limits_w.values()) == {420}


def test_a_budget_that_shrinks_lowers_running_jobs_and_what_is_lowered_is_confirmed_first() -> None:
    row = Row(budget_w=2800)
    row.submit("job-00001")
    row.submit("job-00002")
    row.poll(12)
    assert row.used_w() == 2800
    row.budget(1800)
    row.poll(1)
    assert row.caps() == [450] * 4
    waiting = [o for o in row.orders if any(c.ceiling_w > c.limit_w for c in o.caps.devices)]
    assert waiting, "until the node confirms it, it counts at its old limit"
    row.poll(3)
    assert row.used_w() == 1800
    ceilings = [c.ceiling_w for n in row.driver.cluster.nodes.values() for c in n.caps.devices]
    assert ceilings == [450] * 4


def test_a_silent_node_counts_at_its_default_and_stops_nobody() -> None:
    row = Row(budget_w=2300)
    row.poll(6)
    row.submit("job-00001")
    row.submit("job-00002")
    row.poll(12)
    assert row.caps() == [575] * 4
    row.agents[1].is_up = False
    row.poll(6)
    assert row.caps() == [450, 450, 575, 575]
    assert all(j.stop_cause is None for j in row.driver.cluster.jobs.values())
    row.agents[1].is_up = True
    row.poll(12)
    assert row.caps() == [575] * 4


def test_floors_beyond_the_budget_stop_only_what_may_be_evicted() -> None:
    row = Row(budget_w=2800)
    row.submit("job-00001", preemptible=False)
    row.submit("job-00002", preemptible=True)
    row.poll(6)
    row.budget(1000)
    row.poll(4)
    kept, stopped = (row.driver.cluster.jobs[JobId(f"job-0000{n}")] for n in (1, 2))
    assert kept.stop_cause is None
    assert stopped.stop_cause is not None
    assert "not even the lowest power limits fit" in stopped.message


def test_control_that_ends_takes_its_limits_back() -> None:
    row = Row(budget_w=2000)
    row.poll(6)
    assert row.caps() == [420] * 4
    row.set(power="off")
    row.poll(3)
    assert row.caps() == []
    assert row.agents[0].limits_w == {"n1-0": 700, "n1-1": 700}


def test_a_server_that_starts_waits_until_every_node_had_time_to_speak() -> None:
    row = Row(budget_w=1000)
    row.submit("job-00001")
    row.poll(2)
    assert row.orders == []
    row.poll(2)
    assert row.orders


def test_limits_survive_a_restart_by_the_state() -> None:
    row = Row(budget_w=2000)
    row.poll(6)
    again = Cluster.from_image(row.driver.cluster.image())
    assert again.nodes[NodeName("n1")].caps == row.driver.cluster.nodes[NodeName("n1")].caps
    assert again.state_hash() == row.driver.cluster.state_hash()


def test_an_order_made_without_knowing_a_later_one_is_dropped() -> None:
    row = Row(budget_w=2000)
    row.poll(6)
    known = row.driver.cluster.nodes[NodeName("n1")].caps
    assert known is not None
    lower = tuple(msgspec.structs.replace(cap, limit_w=300) for cap in known.devices)
    for revision in (known.revision - 1, known.revision):
        stale = msgspec.structs.replace(known, revision=revision, devices=lower)
        row.step(PowerCapped(at_s=row.now_s, node=NodeName("n1"), caps=stale))
        assert row.driver.cluster.nodes[NodeName("n1")].caps == known


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "power limits of 420 W on 2 devices ordered: to keep the power budget of 2000 W of"),
        (-1, "power limits of 420 W on 2 devices in force: to keep the power budget of"),
    ],
)
def test_the_story_of_a_node_tells_its_limits(number: int, words: str) -> None:
    row = Row(budget_w=2000)
    row.poll(6)
    assert sentence(row.orders[number], "node/n1").removeprefix("node n2: ").startswith(words)
