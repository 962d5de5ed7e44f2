"""The shipped conformance suite on real Slurm: by commands, by slurmrestd, and over ssh."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest
from slurm_room import engine_of
from slurmd_cluster import NODES, SlurmCluster

from tercio.engines.base import Engine
from tercio.engines.bench import Bench, ShellPrograms
from tercio.engines.conformance import CHECKS, Check, run_check

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("slurm")]

FAKE_SSH = """#!/bin/sh
# Stands for ssh: takes its options, notes that it was asked, runs the words as sshd would.
while [ "$1" != -- ]; do login=$1; shift; done
shift
echo "$login" >> {seen}
cd {home} && exec env -i HOME={home} PATH="$PATH" sh -c "$*"
"""


def run(check: Check, cluster: SlurmCluster, path: Path, **changes: object) -> None:
    outcome = asyncio.run(
        run_check(
            check, lambda: engine_of(cluster, path, **changes), programs=ShellPrograms(),
            user="root", deadline_s=60.0,
        )
    )  # fmt: skip
    if outcome.status == "skipped":
        pytest.skip(outcome.reason)
    assert outcome.status == "passed", outcome.reason


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_slurm_by_commands_keeps_the_contract(
    check: Check, cluster: SlurmCluster, tmp_path: Path
) -> None:
    run(check, cluster, tmp_path)


READS = [
    check
    for check in CHECKS
    if check.id in ("reports-nodes", "tells-exit-codes", "kills-after-grace", "adopts-running")
]


@pytest.mark.parametrize("check", READS, ids=lambda check: check.id)
def test_slurm_read_by_slurmrestd_keeps_the_contract(
    check: Check, cluster: SlurmCluster, tmp_path: Path
) -> None:
    run(check, cluster, tmp_path, rest=cluster.rest_url)


OVER_SSH = [
    check
    for check in CHECKS
    if check.id in ("tells-exit-codes", "launches-once", "reads-logs", "executes", "forgets",
                    "stop-fences-a-launch", "returns-unknown", "fences-older-runs", "reads-marks")
]  # fmt: skip


@pytest.mark.parametrize("check", OVER_SSH, ids=lambda check: check.id)
def test_slurm_over_ssh_keeps_the_contract(
    check: Check, cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    seen = tmp_path / "seen"
    ssh = programs / "ssh"
    ssh.write_text(FAKE_SSH.format(seen=seen, home=tmp_path))
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{Path(sys.executable).parent}:/usr/bin:/bin:/usr/sbin")
    run(check, cluster, tmp_path, ssh="ana@login")
    assert set(seen.read_text().split()) == {"ana@login"}
    # The default spool: below the home of the login.
    assert (tmp_path / ".tercio" / "hpc" / "owner").exists()


@pytest.mark.parametrize("by", ["commands", "slurmrestd"])
def test_both_ways_of_reading_report_the_same_nodes(
    by: str, cluster: SlurmCluster, tmp_path: Path
) -> None:
    foreign = cluster.sbatch("--gres=gpu:3", "-w", "n2", "--mem=1G", "--time=30")
    cluster.until_running(foreign)
    rest = cluster.rest_url if by == "slurmrestd" else ""

    async def look() -> dict[str, object]:
        def make() -> Engine:
            return engine_of(cluster, tmp_path, rest=rest)

        bench = Bench(make, ShellPrograms(), user="root", deadline_s=60.0)
        await bench.open()
        try:
            return {node.name: node for node in bench.nodes}
        finally:
            await bench.engine.close()

    nodes = asyncio.run(look())
    assert tuple(nodes) == NODES
    first, second = nodes["n1"], nodes["n2"]
    assert [device.type for device in first.devices] == ["H100"] * 8  # type: ignore[attr-defined]
    assert (first.cpus_milli, first.memory_bytes) == (64_000, 512_000 * 1024**2)  # type: ignore[attr-defined]
    assert first.labels["rack"] == "leaf1"  # type: ignore[attr-defined]
    assert first.foreign_devices == ()  # type: ignore[attr-defined]
    # What another user's job holds is taken: devices, memory and when they come free.
    assert len(second.foreign_devices) == 3  # type: ignore[attr-defined]
    assert second.memory_bytes == 512_000 * 1024**2 - 1024**3  # type: ignore[attr-defined]
    (end_s,) = set(second.foreign_ends_s)  # type: ignore[attr-defined]
    assert 0 < end_s - time.time() <= 1900


def test_a_task_that_ended_is_not_taken_for_news_while_its_job_completes(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    async def play() -> None:
        bench = Bench(
            lambda: engine_of(cluster, tmp_path), ShellPrograms(), user="root", deadline_s=60.0
        )
        await bench.open()
        for code in (0, 1, 2):
            _, ref = await bench.start(bench.programs.exits(code))
            await bench.exit_of(ref)
            await bench.engine.poll()  # type: ignore[attr-defined]
            assert await bench.engine.adopt([]) == []
            assert bench.engine._watch.tasks == {}  # type: ignore[attr-defined]
        await bench.close()

    asyncio.run(play())
