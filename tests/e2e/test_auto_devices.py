"""`devices: auto` on a machine with two H100 (a driver library of the test's own): from the
question to the run, and the prediction beside what it took."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fake_nvml

from .room import Room, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

JOB = """\
name: tune
per_task: {devices: auto, cpus: 0.5, memory: 256MiB}
model: {name: llama-3-8b, method: full, tokens: 10M, seq: 2048, micro_batch: 2}
run: env | grep -E '^(TERCIO|CUDA)_' | sort
"""
SITE = "date: '2026-12-01'\nprices: {H100: 1.25}\n"


@pytest.fixture
def machine(room: Room, tmp_path: Path) -> Room:
    """A server on two H100, with the site's own prices."""
    library = tmp_path / "nvml"
    library.mkdir()
    driver = fake_nvml.FakeDriver(fake_nvml.build(library), tmp_path / "gpus")
    driver.set({"-1.count": 2})
    (tmp_path / "site.yaml").write_text(SITE, encoding="utf-8")
    room.up(
        **driver.env,
        TERCIO_LOCAL__CPU_DEVICES="0",
        TERCIO_HEALTH__KERNEL_LOG="",
        TERCIO_SIZING__SITE=str(tmp_path / "site.yaml"),
    )
    client = room.client()
    until(lambda: client.nodes().rows[0].total.get("H100") == 2, "both devices")
    (room.work / "job.yaml").write_text(JOB, encoding="utf-8")
    return room


def told(room: Room, job_id: str) -> dict[str, str]:
    """The variables that the job printed."""
    lines = [line.text for line in room.client().logs(job_id)]
    return dict(line.split("=", 1) for line in lines)


def test_a_sized_job_runs_on_the_devices_and_the_layout_that_sizing_chose(machine: Room) -> None:
    plan = json.loads(machine.cli("plan", "-o", "json", "job.yaml"))
    (choice,) = plan["sized"]["choices"]
    assert (choice["devices"], choice["tasks"]) == ("H100:2", 1)
    assert choice["layout"] == {
        "dp": 2, "sharding": "zero3", "shard_group": 2, "micro_batch": 2.0,
        "recompute": choice["layout"]["recompute"],
    }  # fmt: skip
    # The site's price, not a published one.
    assert choice["cost_usd"] == pytest.approx(choice["expected_s"] / 3600 * 2 * 1.25)
    shown = machine.cli("plan", "job.yaml")
    assert "dp 2, zero3, micro-batch 2 x 1" in " ".join(shown.split()), shown

    job_id = machine.cli("submit", "-q", "job.yaml").strip()
    view = machine.ended(job_id)
    assert view.state == "succeeded"
    env = told(machine, job_id)
    assert env["CUDA_VISIBLE_DEVICES"] == "GPU-00000000,GPU-00000001"
    assert (env["TERCIO_TP"], env["TERCIO_DP"], env["TERCIO_SHARDING"]) == ("1", "2", "zero3")
    assert (env["TERCIO_MICRO_BATCH"], env["TERCIO_SEQ"]) == ("2", "2048")
    assert (env["TERCIO_METHOD"], env["TERCIO_PRECISION"]) == ("full", "bf16")
    assert env["TERCIO_RECOMPUTE"] == choice["layout"]["recompute"]

    told_of = view.predicted
    assert told_of is not None
    assert told_of.actual_s is not None
    assert told_of.ratio == pytest.approx(told_of.actual_s / choice["expected_s"])
    line = next(row for row in machine.cli("show", job_id).splitlines() if "sized" in row)
    assert "H100:2" in line
    assert "predicted" in line
    assert "ran" in line


def test_a_broken_site_file_is_named_and_plain_jobs_need_it_not(machine: Room) -> None:
    (machine.path / "site.yaml").write_text("prices: {H100: free}\n", encoding="utf-8")
    errors = machine.error("submit", "job.yaml", code=2)
    assert "sizing.site" in errors
    assert "site.yaml" in errors
    job_id = machine.submit("true", per_task={"devices": "H100:1"})
    assert machine.ended(job_id).state == "succeeded"
