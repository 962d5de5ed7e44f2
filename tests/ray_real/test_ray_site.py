"""Jobs on a real Ray cluster from the command line: pinned, adopted, and beside other people's."""

from __future__ import annotations

import os
import re
import shutil
import signal

import pytest

from e2e.room import ROOT, Room, is_running, until

from .lab import Lab, words

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("ray"), pytest.mark.timeout(300)]

FOREIGN = """
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as Pin
node = next(n['NodeID'] for n in ray.nodes() if n['NodeName'] == 'n1' and n['Alive'])
@ray.remote(num_gpus=3, num_cpus=2)
class Theirs:
    def where(self): return ray.get_gpu_ids()
theirs = Theirs.options(scheduling_strategy=Pin(node, soft=False)).remote()
print('HOLDS', *ray.get(theirs.where.remote()))
"""


def foreign(room: Room, node: str) -> list[int]:
    """Devices of a node that others hold."""
    with room.client() as client:
        view = client.node(node)
    return [device.index for device in view.devices if device.used and not device.jobs]


def ready(room: Room) -> list[str]:
    with room.client() as client:
        return [node.name for node in client.nodes().rows if node.state == "ready"]


def up(room: Room) -> None:
    room.up()
    until(lambda: len(ready(room)) == 4, "the nodes of the cluster", timeout_s=120)


def test_the_example_runs_pinned_and_outlives_its_server(room: Room, lab: Lab) -> None:
    up(room)
    shutil.copy(ROOT / "examples" / "train-ddp" / "train.py", room.work)
    text = (ROOT / "examples" / "train-ddp" / "job.yaml").read_text(encoding="utf-8")
    text = text.replace("--epochs 8", "--epochs 6 --pause 0.5")
    shown = 'run: echo "mine $TERCIO_TASK on $TERCIO_NODE gpu $CUDA_VISIBLE_DEVICES"; '
    (room.work / "job.yaml").write_text(text.replace("run: ", shown), encoding="utf-8")
    job = room.cli("submit", "-q", "job.yaml").strip()
    with room.following("logs", "-f", job) as log:
        log.until("epoch 1/")
        room.kill()
        room.up()
    view = room.ended(job)
    assert (view.state, view.attempt) == ("succeeded", 1), room.cli("story", job)
    told = room.cli("logs", job)
    assert sorted(map(int, re.findall(r"epoch (\d+)/", told))) == list(range(1, 7))
    planned = {task.task: task for task in view.tasks}
    for task, node, devices in re.findall(r"mine (\d) on (\S+) gpu (\S+)", told):
        assert planned[int(task)].node == node
        assert [str(index) for index in planned[int(task)].devices] == devices.split(",")
    until(lambda: lab.state()["groups"] == [], "what was held in Ray to be given back")


def test_a_foreign_job_is_seen_and_planned_around(room: Room, lab: Lab) -> None:
    up(room)
    with lab.driver(FOREIGN) as told:
        held = sorted(map(int, told("HOLDS").split()[1:]))
        until(lambda: foreign(room, "lab-n1") == held, "the foreign job to be seen")
        job = room.submit(
            'echo "gpu $CUDA_VISIBLE_DEVICES"',
            nodes={"match": "name == 'lab-n1'"},
            per_task={"devices": "H100:5"},
        )
        assert room.ended(job).state == "succeeded"
        mine = re.search(r"gpu (\S+)", room.cli("logs", job))
        assert mine is not None
        assert sorted([*map(int, mine[1].split(",")), *held]) == list(range(8))
        waits = room.submit(
            "true", nodes={"match": "name == 'lab-n1'"}, per_task={"devices": "H100:6"}
        )
        until(lambda: "5" in room.cli("explain", waits), "the reason")
        assert room.job(waits).state == "queued"
    # Theirs ended with their driver; ours was never in its way, and starts now.
    assert room.ended(waits).state == "succeeded"


def test_devices_are_the_planned_ones_though_ray_would_give_others(room: Room, lab: Lab) -> None:
    up(room)
    match = {"match": "name == 'lab-n2'"}
    first = room.submit("sleep 600", nodes=match, per_task={"devices": "H100:3"})
    second = room.submit("sleep 600", nodes=match, per_task={"devices": "H100:3"})
    room.reached(first, ["running"])
    room.reached(second, ["running"])
    room.cli("cancel", first)
    room.ended(first)
    with lab.driver(FOREIGN.replace("n1", "n2").replace("num_gpus=3", "num_gpus=1")) as told:
        theirs = told("HOLDS").split()[1:]
        until(lambda: foreign(room, "lab-n2") == [int(theirs[0])], "the foreign job to be seen")
        third = room.submit('echo "gpu $CUDA_VISIBLE_DEVICES"', nodes=match,
                            per_task={"devices": "H100:4"})  # fmt: skip
        view = room.ended(third)
        assert view.state == "succeeded", room.cli("story", third)
        planned = [str(index) for index in view.tasks[0].devices]
        assert f"gpu {','.join(planned)}" in room.cli("logs", third)
        assert theirs[0] not in planned
    room.cli("cancel", second)
    room.ended(second)


def test_a_lost_node_ends_its_tasks_and_the_job_goes_on_elsewhere(room: Room, lab: Lab) -> None:
    up(room)
    job = room.submit(
        'echo "on $TERCIO_NODE"; echo $$ > pid; [ "$TERCIO_ATTEMPT" -gt 1 ] || sleep 600',
        per_task={"devices": "H100:8"},
        retry={"on": ["node_failed"], "max": 5, "backoff": "0s"},
        workdir=str(room.work),
    )
    room.reached(job, ["running"])
    until(lambda: words(room.work / "pid"), "the task to begin")
    (pid,) = map(int, words(room.work / "pid"))
    node = room.job(job).tasks[0].node
    lab.lose_node(node.removeprefix("lab-"))
    # Nobody told it: its node's own guard ends it, so that no second copy can run beside it.
    until(lambda: not is_running(pid), "the task of the lost node to end", timeout_s=120)
    until(
        lambda: "dead" in room.cli("story", f"node/{node}"), "the node to be told lost",
        timeout_s=120,
    )  # fmt: skip
    lab.start_node(int(node[-1]))
    view = room.ended(job)
    # A second attempt may have met the dead node before Ray knew: it was refused there.
    assert view.state == "succeeded", room.cli("story", job)
    assert view.attempt > 1
    assert "was lost" in room.cli("story", job)
    until(lambda: lab.state()["groups"] == [], "what was held in Ray to be given back")


def test_tasks_do_not_notice_that_their_agent_died(room: Room, lab: Lab) -> None:
    up(room)
    job = room.submit(
        "echo $$ > pid; until [ -e go ]; do sleep 0.1; done; echo went on",
        nodes={"match": "name == 'lab-n3'"},
        workdir=str(room.work),
    )
    room.reached(job, ["running"])
    until((room.work / "pid").exists, "the task to begin")
    for pid in lab.agent_pids("n3"):
        os.kill(pid, signal.SIGKILL)
    (room.work / "go").touch()
    view = room.ended(job)
    assert (view.state, view.attempt) == ("succeeded", 1), room.cli("story", job)
    assert "went on" in room.cli("logs", job)
