"""The readings of a simulated site: of all its nodes, by who holds their devices."""

from __future__ import annotations

from tercio.core.cluster import Cluster
from tercio.engines.sim.readings import with_identity
from tercio.model.events import (
    AnyEvent,
    JobPlaced,
    JobSubmitted,
    NodeReported,
    ServerStarted,
    TaskStarted,
)
from tercio.model.ids import EffectId, JobId, NodeName, QueuePath
from tercio.model.placement import TaskPlacement
from tercio.model.resources import DeviceShare
from tercio.runtime.simulated import SimulatedReadings
from tercio.runtime.telemetry import Telemetry
from tercio.testing import make_job, make_node

JOB = JobId("job-00001")
NODE = NodeName("n1")


def test_every_node_of_the_site_reports_and_held_devices_are_busy() -> None:
    cluster, told = Cluster(), list[AnyEvent]()
    cluster.apply(ServerStarted(at_s=0.0, epoch=1, version="t"))
    for name in ("n1", "n2"):
        spec = with_identity(make_node(name, devices=2, site="sim"))
        cluster.apply(NodeReported(at_s=0.0, spec=spec))
    cluster.apply(
        NodeReported(at_s=0.0, spec=with_identity(make_node("real", devices=2, site="local")))
    )
    cluster.apply(
        JobSubmitted(
            at_s=0.0, job_id=JOB, spec=make_job(), queue=QueuePath("default"), user="ana",
            tenant="default",
        )
    )  # fmt: skip
    task = TaskPlacement(task=0, node=NODE, devices=(DeviceShare(index=1),))
    cluster.apply(JobPlaced(at_s=0.0, job_id=JOB, attempt=1, tasks=(task,)))
    effect = EffectId(f"launch:{JOB}/1/0")
    cluster.apply(TaskStarted(at_s=1.0, job_id=JOB, attempt=1, task=0, effect_id=effect))
    telemetry = Telemetry(
        cluster=lambda: cluster, deliver=told.append, now=lambda: 5.0, poll_s=10.0
    )
    readings = SimulatedReadings(
        cluster=lambda: cluster, telemetry=telemetry, now=lambda: 5.0, site="sim", poll_s=10.0
    )
    readings.report()
    busy = {n: d.utilization_ratio for n, d in telemetry.devices(NODE).items()}
    assert busy[0] == 0.0
    assert busy[1] > 0.5
    assert len(telemetry.devices(NodeName("n2"))) == 2
    assert telemetry.devices(NodeName("real")) == {}
    assert told == []
