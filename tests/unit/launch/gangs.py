"""Placed gangs for the tests of the recipes."""

from tercio.launch.recipes import render
from tercio.model.ids import JobId, NodeName, SiteName
from tercio.model.job import JobSpec
from tercio.model.node import NodeSpec
from tercio.model.placement import TaskPlacement
from tercio.model.resources import DeviceShare

NODES = {
    NodeName(name): NodeSpec(name=NodeName(name), site=SiteName("s"), address=f"10.0.0.{number}")
    for number, name in enumerate(("n1", "n2", "n3"), start=1)
}


def launches(
    nodes, *, devices=1, job_id="job-00001", attempt=1, group_of=(), cpus_milli=4000, **spec
):
    """Render one task on each of the named nodes; ports are 200T0 to 200T3 for task T."""
    spec.setdefault("run", "python train.py")
    spec.setdefault("name", "x")
    tasks = tuple(
        TaskPlacement(
            task=task,
            node=NodeName(node),
            group=group_of[task] if group_of else 0,
            devices=tuple(DeviceShare(index=index) for index in range(devices)),
            cpus_milli=cpus_milli,
        )
        for task, node in enumerate(nodes)
    )
    ports = {task: tuple(20000 + 10 * task + n for n in range(4)) for task in range(len(tasks))}
    return render(
        JobSpec(**spec),
        job_id=JobId(job_id),
        attempt=attempt,
        tasks=tasks,
        nodes=NODES,
        ports=ports,
    )
