"""Gangs of real frameworks on real Ray: how each finds its ranks, what they mark, and a resume."""

from __future__ import annotations

import pytest

from e2e.room import Room, until
from e2e.test_hang import hang_once

from .lab import Lab
from .test_ray_site import ready

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("ray"), pytest.mark.timeout(300)]


def test_a_gang_that_hangs_on_ray_is_seen_by_its_marks_and_begins_again(
    room: Room, lab: Lab
) -> None:
    room.up(TERCIO_HEALTH__POLL_S="0.2")
    until(lambda: len(ready(room)) == 4, "the nodes of the cluster", timeout_s=120)
    hang_once(room, devices="H100:8")
