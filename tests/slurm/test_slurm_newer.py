"""The conformance suite on Slurm 24.11: read and submitted to by slurmrestd, pinned by it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from newer_cluster import NewerCluster, newer_missing
from slurm_room import engine_of

from tercio.engines.bench import Bench, ShellPrograms
from tercio.engines.conformance import CHECKS, Check, run_check
from tercio.engines.slurm.engine import SlurmEngine
from tercio.model.effects import DeviceOrder
from tercio.model.resources import DeviceShare

pytestmark = [
    pytest.mark.e2e, pytest.mark.full, pytest.mark.xdist_group("slurm-newer"),
]  # fmt: skip


@pytest.fixture(scope="module")
def running_newer() -> Iterator[NewerCluster]:
    reason = newer_missing()
    if reason:
        pytest.skip(f"Slurm 24.11 {reason}")
    cluster = NewerCluster()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def newer(running_newer: NewerCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[NewerCluster]:
    """The cluster, its commands first in PATH; whatever the test left in it is removed."""
    monkeypatch.setenv("PATH", f"{running_newer.commands}:{os.environ['PATH']}")
    yield running_newer
    running_newer.clean()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_slurm_24_by_slurmrestd_keeps_the_contract(
    check: Check, newer: NewerCluster, tmp_path: Path
) -> None:
    def make() -> SlurmEngine:
        engine = engine_of(newer, tmp_path, rest=newer.rest_url, python="/usr/bin/python3")
        assert isinstance(engine, SlurmEngine)
        return engine

    outcome = asyncio.run(
        run_check(check, make, programs=ShellPrograms(), user="root", deadline_s=60.0)
    )
    if outcome.status == "skipped":
        pytest.skip(outcome.reason)
    assert outcome.status == "passed", outcome.reason


def test_slurmrestd_pins_the_node_and_the_devices(
    newer: NewerCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # There is no sbatch for it: whatever is submitted came by slurmrestd.
    broken = tmp_path / "bin"
    broken.mkdir()
    (broken / "sbatch").write_text("#!/bin/sh\nexit 1\n")
    (broken / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{broken}:{os.environ['PATH']}")

    async def play() -> None:
        bench = Bench(
            lambda: engine_of(newer, tmp_path, rest=newer.rest_url, python="/usr/bin/python3"),
            ShellPrograms(),
            user="root",
            deadline_s=60.0,
        )
        await bench.open()
        devices = tuple(
            DeviceOrder(share=DeviceShare(index=index), type="H100", vendor="nvidia")
            for index in (0, 1)
        )
        _, ref = await bench.start(
            {
                "command": "echo $CUDA_VISIBLE_DEVICES; exec sleep 600",
                "node": "n3",
                "devices": devices,
                "memory_bytes": 3 << 30,
                "cpus_milli": 3000,
                "limit_s": 600.0,
            }
        )
        told = newer.out("scontrol", "show", "job", "-o", "-d")
        for text in (
            "NodeList=n3 ",
            "gpu:h100:2",
            "NumCPUs=3",
            "mem=3G",
            "TimeLimit=00:16:",
            "Requeue=0",
            f"launch:{ref.job_id}/1/0 n3 0,1",
        ):
            assert text in told, told
        await bench.close()

    asyncio.run(play())
