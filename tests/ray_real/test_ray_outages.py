"""The head dies and comes back, a node is cut off with its tasks alive, others are quicker."""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress

import pytest

from e2e.room import Room, is_running, until

from .lab import Lab, words
from .test_ray_site import FOREIGN, up

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("ray"), pytest.mark.timeout(300)]


def test_the_head_dies_and_comes_back_and_nothing_is_lost_or_begun_twice(
    room: Room, lab: Lab
) -> None:
    up(room)
    starts, go = room.path / "starts", room.path / "go"
    run = f"echo $TERCIO_JOB >> {starts}; until [ -e {go} ]; do sleep 0.1; done; exit 7"
    ends = room.submit(run, retry={"on": ["node_failed"], "backoff": "0s"})
    lives = room.submit(f"echo $TERCIO_JOB >> {starts}; exec sleep 600")
    for each in (ends, lives):
        # The answers to their starts must be in before nobody answers.
        room.reached(each, ["running"])
    until(lambda: len(words(starts)) == 2, "both to begin")
    lab.lose_head()
    late = room.submit(f"echo $TERCIO_JOB >> {starts}")
    until(lambda: "ray_silent" in room.server_log(), "the silence", timeout_s=120)
    # One ends meanwhile: its node knows, and nobody asks.
    go.touch()
    assert [room.job(job).state for job in (ends, lives)] == ["running", "running"]
    lab.restart_head()
    view = room.ended(ends)
    assert (view.state, view.attempt) == ("failed", 1), room.cli("story", ends)
    assert view.tasks[0].exit_code == 7
    assert room.ended(late).state == "succeeded", room.cli("story", late)
    assert (room.job(lives).state, room.job(lives).attempt) == ("running", 1)
    room.cli("cancel", lives)
    room.ended(lives)
    assert sorted(words(starts)) == sorted([ends, lives, late])
    assert "lost" not in room.cli("story", ends) + room.cli("story", lives)
    until(lambda: lab.state()["groups"] == [], "what was held in Ray to be given back")


@pytest.mark.full
def test_a_gang_begins_again_beside_a_member_that_is_cut_off_and_ends_with_its_raylet(
    room: Room, lab: Lab
) -> None:
    """The old member lives on where nobody reaches it, under the number of an older attempt."""
    up(room)
    (room.work / "policy.yaml").write_text("fence_after: 2s\nqueues: {default: {}}\n")
    room.cli("policy", "set", "policy.yaml")
    pids = room.path / "pids"
    job = room.submit(
        f"echo $TERCIO_ATTEMPT $TERCIO_TASK $TERCIO_NODE $$ >> {pids}; "
        '[ "$TERCIO_ATTEMPT" -gt 1 ] || exec sleep 600',
        tasks=2, per_task={"devices": "H100:8"},
        retry={"on": ["node_failed"], "max": 5, "backoff": "0s"},
    )  # fmt: skip
    until(lambda: len(words(pids)) == 8, "both to begin")
    (old,) = re.findall(r"^1 0 lab-(\S+) (\d+)$", pids.read_text(), re.M)
    name, pid = old[0], int(old[1])
    raylet = lab.raylet_pid(name)
    os.kill(raylet, signal.SIGSTOP)
    try:
        view = room.ended(job)
        assert view.state == "succeeded", room.cli("story", job)
        assert is_running(pid), "it must have been alive beside the second attempt"
        assert name not in re.findall(r"^[2-9] \d lab-(\S+) ", pids.read_text(), re.M)
        story = room.cli("story", job)
        assert f"lab-{name}" in story, story
        assert "lost" in story, story
        os.kill(raylet, signal.SIGCONT)
        # The raylet hears that it was given up and ends, and with it what it had.
        until(lambda: not is_running(pid), "the old member to end", timeout_s=120)
    finally:
        with suppress(ProcessLookupError):
            os.kill(raylet, signal.SIGCONT)
        lab.stop_node(name)
    assert room.job(job).attempt == view.attempt
    assert room.job(job).state == "succeeded"
    # Ray would hold the place of the old member for ever, and call for a node for it.
    until(lambda: lab.state()["groups"] == [], "what was held in Ray to be given back")


def test_others_who_are_quicker_are_told_of_and_planned_around(room: Room, lab: Lab) -> None:
    """The server looks seldom: it plans on nodes that somebody has taken since."""
    room.cli("site", "remove", "lab")
    room.cli("site", "add", "ray", "seldom", "--address", lab.address, "--poll", "3600",
             "--node-dir", str(lab.home / "nodes"))  # fmt: skip
    room.up()
    nodes = [f"seldom-n{number}" for number in (1, 2)]

    def is_ready() -> bool:
        with room.client() as client:
            return set(nodes) <= {node.name for node in client.nodes().rows}

    until(is_ready, "the nodes of the cluster", timeout_s=120)
    go = room.path / "go"
    mine = room.submit(
        f"until [ -e {go} ]; do sleep 0.1; done", per_task={"devices": "H100:8"},
        nodes={"match": f"name == '{nodes[1]}'"},
    )  # fmt: skip
    room.reached(mine, ["running"])
    with lab.driver(FOREIGN.replace("num_gpus=3", "num_gpus=8")) as told:
        told("HOLDS")
        job = room.submit(
            'echo "on $TERCIO_NODE"', per_task={"devices": "H100:8"},
            nodes={"match": f"name in {nodes!r}"},
        )  # fmt: skip
        until(lambda: "no room in Ray" in room.cli("story", job), "the refusal")
        # The refusal made it look again: it knows whose the node is, and waits for the other.
        until(lambda: room.job(job).state == "queued", "the job to be planned again")
        go.touch()
        view = room.ended(job)
    assert view.state == "succeeded", room.cli("story", job)
    assert f"on {nodes[1]}" in room.cli("logs", job)
    assert room.ended(mine).state == "succeeded"
