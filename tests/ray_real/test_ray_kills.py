"""The server is killed around its effects on a real Ray cluster: nothing is lost or runs twice."""

from __future__ import annotations

import subprocess

import pytest

from e2e.room import Room, until
from e2e.test_kill_points import killed_once

from .lab import Lab
from .test_ray_site import up

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("ray"), pytest.mark.timeout(300)]

PARTS = 9
FEW = (2,)


@pytest.mark.parametrize(
    "part",
    [part if part in FEW else pytest.param(part, marks=pytest.mark.full) for part in range(PARTS)],
)
def test_killed_at_a_point_of_its_own_choice(
    room: Room, lab: Lab, mortal: subprocess.Popen[str], part: int
) -> None:
    killed_once(room, mortal, 8 + part * 5)
    until(lambda: lab.state()["groups"] == [], "what was held in Ray to be given back")


@pytest.mark.full
def test_killed_in_the_middle_of_a_grace_the_task_ends_by_itself(room: Room, lab: Lab) -> None:
    up(room)
    marks, go = room.path / "stops", room.path / "go"
    run = (
        f"trap 'echo stop >> {marks}; until [ -e {go} ]; do sleep 0.1; done; echo saved; exit 0' "
        "TERM; echo ready; while :; do sleep 0.1; done"
    )
    job = room.submit(run, per_task={"devices": "H100:2"}, checkpoint={"grace": "120s"})
    with room.following("logs", "-f", job) as log:
        log.until("ready")
        room.cli("cancel", job)
        until(marks.exists, "the order to stop to come through")
        room.kill()
        go.touch()
        # The agent on the node needs no server for the rest of the grace.
        room.up()
        log.rest()
    view = room.ended(job)
    assert (view.state, view.attempt) == ("cancelled", 1), room.cli("story", job)
    assert "saved" in room.cli("logs", job)
    assert marks.read_text().split() == ["stop"]
    until(lambda: lab.state()["groups"] == [], "what was held in Ray to be given back")
