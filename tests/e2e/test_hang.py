"""A rank stands still: the gang is stopped and starts again, and the story tells it."""

from __future__ import annotations

import json

import pytest

from .room import Room

pytestmark = pytest.mark.e2e
TRAIN = """
for i in $(seq 1 20); do
  if [ "$TERCIO_ATTEMPT" = 1 ] && [ $i -ge $((8 - TERCIO_TASK)) ]; then exec sleep 1000; fi
  echo "$(date +%s.%N) step $i" >> "$TERCIO_MARKS"
  sleep 0.05
done
"""


def hang_once(room: Room, **per_task: object) -> str:
    """Run a gang of two that hangs in its first attempt, where the server looks often."""
    room.cli("health", "policy", "set", "mode=act", "hang_ratio=3", "hang_min_s=2s")
    job_id = room.submit(TRAIN, tasks=2, per_task=per_task)
    view = room.ended(job_id)
    told = "\n".join(room.story(job_id))
    assert (view.state, view.attempt) == ("succeeded", 2), told
    assert "attempt 1 hangs in step: silent for " in told, told
    assert "the others wait for task 1; stopped" in told, told
    use = json.loads(room.cli("report", "usage", "--by", "job", "-o", "json"))["rows"][0]
    assert use["hung_ms"] > 2 * 2000, use
    return job_id


def test_a_hang_costs_a_restart_and_no_night(room: Room) -> None:
    room.up(TERCIO_HEALTH__POLL_S="0.2")
    job_id = hang_once(room, devices="CPU:1", cpus=0.1)
    first = b"".join(p.read_bytes() for p in room.state.glob(f"tasks/{job_id}/1/*/logs/*"))
    assert b"hung in step: silent for " in first
    assert "hung" in room.cli("show", job_id)
