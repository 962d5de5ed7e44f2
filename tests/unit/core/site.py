"""A site of two racks for tests of sharing, driven by commands."""

from __future__ import annotations

import pytest

from tercio.core.cluster import Cluster
from tercio.core.commands import to_events
from tercio.core.driver import Driver, DriverSettings
from tercio.errors import UserError
from tercio.model.commands import SetPolicy, SubmitJob
from tercio.model.effects import LaunchTask
from tercio.model.events import (
    AnyEvent,
    NodeReported,
    ServerStarted,
    TaskStarted,
)
from tercio.model.identity import Principal, Role
from tercio.model.ids import JobId
from tercio.model.queue import Policy
from tercio.testing import make_job, make_node, make_principal

ANA = make_principal("ana")
OPERATOR = make_principal("op", Role.OPERATOR)
ADMIN = make_principal("root", Role.ADMIN)


class Site:
    """Two racks of two H100:8 nodes each, and one A100:4 node without a rack."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.driver = Driver(Cluster(), settings=DriverSettings(is_validating=True))
        self.now_s = 1000.0
        start: list[AnyEvent] = [ServerStarted(at_s=self.now_s, epoch=1, version="test")]
        for number in (1, 2, 3, 4):
            labels = {"rack": f"r{(number + 1) // 2}"}
            spec = make_node(f"n{number}", labels=labels)
            start.append(NodeReported(at_s=self.now_s, spec=spec))
        start.append(
            NodeReported(at_s=self.now_s, spec=make_node("a1", devices=4, type="A100", cpus=8))
        )
        self.driver.step(start, self.now_s)
        if policy is not None:
            self.do(SetPolicy(policy=policy), ADMIN)

    @property
    def cluster(self) -> Cluster:
        return self.driver.cluster

    def do(self, command: object, who: Principal = ANA) -> list[AnyEvent]:
        self.now_s += 1
        events = to_events(self.cluster, command, who, self.now_s)  # type: ignore[arg-type]
        step = self.driver.step(events, self.now_s)
        assert not step.refused
        starts = [
            TaskStarted(
                at_s=self.now_s, job_id=e.job_id, attempt=e.attempt, task=e.task,
                effect_id=e.effect_id,
            )
            for e in step.effects
            if isinstance(e, LaunchTask)
        ]  # fmt: skip
        self.driver.step(starts, self.now_s)
        return [entry.event for entry in step.entries]

    def submit(self, who: Principal = ANA, **fields: object) -> JobId:
        made = self.do(SubmitJob(spec=make_job(**fields)), who)  # type: ignore[arg-type]
        return made[0].job_id  # type: ignore[union-attr]

    def refused(self, command: object, who: Principal = ANA) -> UserError:
        before = self.cluster.state_hash()
        with pytest.raises(UserError) as caught:
            to_events(self.cluster, command, who, self.now_s)  # type: ignore[arg-type]
        assert self.cluster.state_hash() == before
        return caught.value
