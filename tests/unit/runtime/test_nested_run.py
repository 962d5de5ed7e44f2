"""A gang of gangs through a whole server and the simulated machines, a crash in between."""

from __future__ import annotations

from pathlib import Path

from live_world import World, run
from tercio.formats.native import read_job
from tercio.model.events import JobPlaced
from tercio.model.job import JobState
from tercio.testing.factories import make_node

TEXT = """
name: nested
run: "true"
time: {expected: 50s}
groups:
  - {name: head, per_task: {cpus: 1}}
  - name: work
    topology: {same: rack, leader: head}
    min_subgroups: 1
    subgroups:
      - {name: left, tasks: 2, per_task: {devices: "H100:8", cpus: 1}}
      - {name: right, tasks: 2, per_task: {devices: "H100:8", cpus: 1}}
"""


def test_enough_of_it_runs_to_its_end_over_a_crash(tmp_path: Path) -> None:
    nodes = [make_node(f"n{at}", labels={"rack": f"r{at // 2}"}) for at in range(4)]

    async def test() -> None:
        world = World(tmp_path, nodes=nodes, is_stepped=True)
        await world.start()
        job_id = await world.submit(read_job(TEXT, source="job.yaml").specs[0])
        await world.until(lambda: world.job(job_id).state is JobState.RUNNING)
        await world.crash()
        async with world:
            assert world.job(job_id).state is JobState.RUNNING
            await world.advance(60.0)
            job = await world.ended(job_id)
            assert (job.state, job.attempt) == (JobState.SUCCEEDED, 1)
            (placed,) = world.events(JobPlaced)
            # A rack has two nodes: one of the two gangs, with the leader on a node of it.
            assert [task.group for task in placed.tasks] == [0, 1, 1]
            racks = {int(task.node[1:]) // 2 for task in placed.tasks}
            assert len(racks) == 1

    run(test())
