"""A power budget on a live server over a fake driver: limits set, shown, and taken back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fake_nvml

from .room import Room, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture
def driver(tmp_path: Path) -> fake_nvml.FakeDriver:
    library = tmp_path / "nvml"
    library.mkdir()
    fake = fake_nvml.FakeDriver(fake_nvml.build(library), tmp_path / "gpus")
    fake.set({"-1.count": 2, "*.util": 80, "*.power_mw": 350_000})
    return fake


def test_a_budget_is_kept_by_limits_and_they_are_taken_back(
    room: Room, driver: fake_nvml.FakeDriver
) -> None:
    room.up(
        **driver.env,
        TERCIO_LOCAL__NODES="n1=0-1",
        TERCIO_LOCAL__CPU_DEVICES="0",
        TERCIO_HEALTH__KERNEL_LOG="",
        TERCIO_HEALTH__POLL_S="0.2",
        TERCIO_HEALTH__JOB_FILES=str(room.path / "jobs"),
    )
    client = room.client()
    until(lambda: client.live().rows[0].devices, "the first reading")
    policy = room.work / "policy.yaml"
    policy.write_text("queues: {default: {}}\nbudgets: [{domain: n1, power: 1000W}]\n")
    room.cli("policy", "set", str(policy))
    shown = room.run("health", "power")
    assert "power limits are left alone" in shown.stderr, shown.stderr
    assert "1000W" in shown.stdout, shown.stdout
    assert driver.limits_w() == []

    room.cli("health", "policy", "set", "power=act")
    job = room.work / "job.yaml"
    job.write_text("name: two\nper_task: {devices: 2}\nrun: sleep 600\n")
    room.cli("submit", str(job))
    job_id = client.jobs().rows[0].id
    until(lambda: client.job(job_id).state == "running", "room for both devices")
    until(lambda: driver.limits_w()[-2:] == [(0, 500), (1, 500)], "all of the budget")
    files = {file.name: file.read_text() for file in (room.path / "jobs").iterdir()}
    assert files == {"0": f"{job_id}\n", "1": f"{job_id}\n"}
    (row,) = json.loads(room.cli("health", "power", "-o", "json"))["rows"]
    assert (row["in_use"], row["ceiling_w"], row["drawn_w"]) == (2, 1000, 700.0)
    assert "500W of 700W on 2 GPUs" in room.cli("node", "show", "n1")
    assert "to keep the power budget of 1000 W of n1" in room.cli("story", "node/n1")

    room.cli("health", "policy", "set", "power=off")
    until(lambda: driver.limits_w()[-2:] == [(0, 700), (1, 700)], "the old limits")
    room.cli("cancel", job_id)
