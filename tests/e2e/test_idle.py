"""A job that lets its GPU idle is warned in its own log, stopped, and queued again."""

from __future__ import annotations

from pathlib import Path

import pytest

import fake_nvml

from .room import Room, until

pytestmark = pytest.mark.e2e


def test_an_idle_gpu_is_given_back(room: Room, tmp_path: Path) -> None:
    library = tmp_path / "nvml"
    library.mkdir()
    driver = fake_nvml.FakeDriver(fake_nvml.build(library), tmp_path / "gpus")
    driver.set({"-1.count": 1, "*.util": 0})
    room.up(**driver.env, TERCIO_LOCAL__CPU_DEVICES="0", TERCIO_HEALTH__POLL_S="0.2")
    room.cli("health", "policy", "set", "mode=act", "idle_limit_s=1s", "idle_grace_s=1s")
    job_id = room.submit("sleep 1000", per_task={"devices": 1}, checkpoint={"grace": "1s"})
    told = "stopped to give them back, and queued again"
    until(lambda: any(told in line for line in room.story(job_id)), "the GPU to be given back")
    room.reached(job_id, ("queued",))
    log = b"".join(p.read_bytes() for p in room.state.glob(f"tasks/{job_id}/1/*/logs/*"))
    assert b"all GPUs were idle for " in log
    assert b"unless they work" in log
