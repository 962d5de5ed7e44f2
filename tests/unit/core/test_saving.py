"""How often jobs are told to save."""

from __future__ import annotations

import msgspec
import pytest

from tercio.core.cluster import Cluster
from tercio.core.saving import FLEET_RATE_PER_DAY, Wear, with_interval
from tercio.health.checkpoint import daly_interval_s
from tercio.model.effects import LaunchTask
from tercio.model.events import NodeFenced, NodeLost
from tercio.model.ids import NodeName
from tercio.model.job import CheckpointSpec
from tercio.testing import make_job

from .machine import Machine

SAVES = CheckpointSpec(path="/ckpt", grace_s=60.0)
DAY_S = 86_400.0


def told(machine: Machine, checkpoint: CheckpointSpec) -> str | None:
    job = machine.submit(make_job(checkpoint=checkpoint))
    device = job[-1]
    (launch,) = machine.place(job, first_device=int(device))
    assert isinstance(launch, LaunchTask)
    return launch.env.get("TERCIO_CHECKPOINT_EVERY_S")


def test_an_interval_that_is_written_is_told_as_it_is() -> None:
    assert told(Machine(), CheckpointSpec(every_s=600.0)) == "600"


def test_auto_is_the_optimum_for_the_nodes_of_the_attempt() -> None:
    wear = Wear()
    for nodes in (128, 512):
        spec = with_interval(make_job(checkpoint=SAVES), node_count=nodes, wear=wear, at_s=0.0)
        mttf_s = DAY_S / (nodes * FLEET_RATE_PER_DAY)
        best_s = daly_interval_s(save_s=60.0, mttf_s=mttf_s)
        assert spec.checkpoint.every_s == pytest.approx(best_s, abs=1.0)


def test_auto_of_a_job_that_does_not_say_that_it_saves_tells_nothing() -> None:
    assert told(Machine(), CheckpointSpec()) is None
    assert told(Machine(), SAVES) == "14400", "one node seldom fails: the longest interval"


def test_nodes_that_fail_shorten_the_interval_and_a_calm_time_lengthens_it() -> None:
    machine = Machine()
    first = machine.cluster
    calm = first._state.wear.rate_per_day(machine.now_s)
    for _ in range(3):
        machine.do(NodeLost(at_s=machine.now_s, node=NodeName("n1"), reason="gone"))
        machine.do(NodeFenced(at_s=machine.now_s, node=NodeName("n1"), reason="gone"))
    wear = machine.cluster._state.wear
    assert wear.failures == 3
    assert wear.rate_per_day(machine.now_s) > 2 * calm
    assert wear.rate_per_day(machine.now_s + 3000 * DAY_S) < calm
    again = Cluster.from_image(machine.cluster.image())
    assert again._state.wear.failures == 3
    assert again.state_hash() == machine.cluster.state_hash()


def test_the_job_itself_keeps_auto() -> None:
    machine = Machine()
    job = machine.submit(make_job(checkpoint=SAVES))
    machine.place(job)
    assert machine.cluster.jobs[job].spec.checkpoint == SAVES
    assert msgspec.structs.asdict(SAVES)["every_s"] is None
