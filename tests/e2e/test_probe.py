"""`tercio size probe`: a few steps of a job on two H100 of the test's own driver library."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fake_nvml

from .room import Room, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

# Marks steps at times of its own, a tenth of a second apart after two slow ones; it never ends
# by itself. A checkpoint of a second lies between two steps.
TRAIN = """\
import os, signal, time
def mark(at, what):
    with open(os.environ["TERCIO_MARKS"], "a") as file:
        file.write(f"{at:.3f} {what}\\n")
at = time.time()
for step in range(40):
    at += 3.0 if step < 2 else 0.1
    mark(at, f"step {step} tokens 8192")
    if step == 20:
        mark(at, "checkpoint begin")
        at += 1.0
        mark(at, "checkpoint end bytes 2000000000")
signal.pause()
"""
JOB = """\
name: tune
per_task: {devices: auto, cpus: 0.5, memory: 256MiB}
model: {name: llama-3-8b, method: full, tokens: 10M, seq: 2048, micro_batch: 2}
run: python3 TRAIN
"""


@pytest.fixture
def machine(room: Room, tmp_path: Path) -> Room:
    library = tmp_path / "nvml"
    library.mkdir()
    driver = fake_nvml.FakeDriver(fake_nvml.build(library), tmp_path / "gpus")
    driver.set({"-1.count": 2})
    room.up(**driver.env, TERCIO_LOCAL__CPU_DEVICES="0", TERCIO_HEALTH__KERNEL_LOG="")
    client = room.client()
    until(lambda: client.nodes().rows[0].total.get("H100") == 2, "both devices")
    room.path.chmod(0o755)
    train = room.work / "train.py"
    train.write_text(TRAIN, encoding="utf-8")
    (room.work / "job.yaml").write_text(JOB.replace("TRAIN", str(train)), encoding="utf-8")
    return room


def test_a_probe_stops_the_job_measures_it_and_corrects_the_site(machine: Room) -> None:
    (machine.work / "site.yaml").write_text("prices: {H100: 2}  # ours\n", encoding="utf-8")
    body = json.loads(
        machine.cli("size", "probe", "job.yaml", "-o", "json", "--save", "site.yaml")
    )  # fmt: skip
    found = body["result"]
    assert found["measured"]["step_s"] == pytest.approx(0.1, abs=0.002)
    assert found["measured"]["tokens_per_s"] == pytest.approx(81_920, rel=0.02)
    assert found["measured"]["checkpoint_s"] == pytest.approx(1.0, abs=0.002)
    assert found["measured"]["checkpoint_bytes"] == 2e9
    assert found["predicted"]["gpus"] == 2
    ratio = found["measured"]["tokens_per_s"] / found["predicted"]["tokens_per_s"]
    assert found["ratio"] == pytest.approx(ratio)
    view = machine.job(found["job"])
    assert view.state == "cancelled"
    assert "20 steps are enough" in "\n".join(machine.story(view.id))
    # The next prediction with this file is the measured speed; its comment is still there.
    saved = (machine.work / "site.yaml").read_text(encoding="utf-8")
    assert saved.startswith("prices: {H100: 2}  # ours\nprobes:\n  - {")
    words = ("--model", "llama-3-8b", "--method", "full", "--gpus", "H100", "--micro-batch", "2")
    again = json.loads(
        machine.cli("size", "finetune", *words, "--site", "site.yaml", "-o", "json")
    )  # fmt: skip
    two = next(row for row in again["answers"] if row["fit"]["gpus"] == 2)
    assert two["tokens_per_s"] == pytest.approx(found["measured"]["tokens_per_s"], rel=0.01)


def test_a_job_that_marks_nothing_is_told_how(machine: Room) -> None:
    (machine.work / "plain.yaml").write_text(
        "name: plain\nrun: 'true'\nper_task: {cpus: 0.1, memory: 64MiB}\n", encoding="utf-8"
    )  # fmt: skip
    errors = machine.error("size", "probe", "plain.yaml", code=7)
    assert "too few to measure" in errors
    assert "TERCIO_MARKS" in errors
