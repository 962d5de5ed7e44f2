"""Gangs of real frameworks on real Ray: how each finds its ranks, what they mark, and a resume."""

from __future__ import annotations

import pytest

from e2e.room import Room, until
from e2e.test_frameworks import PAIRS, RunPair, preempted
from e2e.test_hang import hang_once

from .lab import Lab
from .test_ray_site import ready, up

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("ray"), pytest.mark.timeout(300)]


def test_a_gang_that_hangs_on_ray_is_seen_by_its_marks_and_begins_again(
    room: Room, lab: Lab
) -> None:
    room.up(TERCIO_HEALTH__POLL_S="0.2")
    until(lambda: len(ready(room)) == 4, "the nodes of the cluster", timeout_s=120)
    hang_once(room, devices="H100:8")


SPREAD = {
    "per_task": {"devices": "H100:1", "cpus": 1, "memory": "3GiB"},
    "topology": {"spread": "node"},
}


@pytest.mark.full
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.__name__)
def test_every_framework_finds_its_ranks_on_ray(room: Room, lab: Lab, pair: RunPair) -> None:
    up(room)
    # mpirun reaches the other nodes by ssh; here they are this machine.
    remote = room.work / "remote"
    remote.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n', encoding="utf-8")
    remote.chmod(0o755)
    pair(room, env={"OMPI_MCA_plm_rsh_agent": str(remote)}, **SPREAD)


@pytest.mark.full
def test_a_preempted_gang_on_ray_saves_on_its_signal_and_resumes_from_there(
    room: Room, lab: Lab
) -> None:
    up(room)
    whole = {"devices": "H100:8", "cpus": 2, "memory": "3GiB"}
    preempted(room, per_task=whole, nodes={"match": "name == 'lab-n1' or name == 'lab-n2'"})
