from __future__ import annotations

from pathlib import Path

import pytest

from tercio.collect.procfs import parse_memory_total, read_machine


@pytest.fixture
def machine(tmp_path: Path) -> tuple[Path, Path]:
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal:       1000000 kB\nMemFree: 5 kB\n")
    (proc / "self/cgroup").write_text("0::/box/job\n")
    (cgroup / "box/job").mkdir(parents=True)
    return proc, cgroup


def test_without_limits_it_is_the_machine(
    machine: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 5})
    found = read_machine(proc=machine[0], cgroup=machine[1])
    assert (found.cpus_milli, found.memory_bytes) == (3000, 1_000_000 * 1024)


def test_limits_of_every_group_above_count(
    machine: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    proc, cgroup = machine
    (cgroup / "box/job/cpu.max").write_text("max 100000\n")
    (cgroup / "box/cpu.max").write_text("150000 100000\n")
    (cgroup / "box/job/memory.max").write_text("4096\n")
    (cgroup / "box/memory.max").write_text("max\n")
    found = read_machine(proc=proc, cgroup=cgroup)
    assert (found.cpus_milli, found.memory_bytes) == (1500, 4096)


def test_version_1_limits_count(
    machine: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    proc, cgroup = machine
    (proc / "self/cgroup").write_text("4:memory:/box\n3:cpu,cpuacct:/box\n")
    for name in ("memory/box", "cpu,cpuacct/box"):
        (cgroup / name).mkdir(parents=True)
    (cgroup / "memory/box/memory.limit_in_bytes").write_text("8192\n")
    (cgroup / "memory/memory.limit_in_bytes").write_text("9223372036854771712\n")
    (cgroup / "cpu,cpuacct/box/cpu.cfs_quota_us").write_text("50000\n")
    (cgroup / "cpu,cpuacct/box/cpu.cfs_period_us").write_text("100000\n")
    (cgroup / "cpu,cpuacct/cpu.cfs_quota_us").write_text("-1\n")
    (cgroup / "cpu,cpuacct/cpu.cfs_period_us").write_text("100000\n")
    found = read_machine(proc=proc, cgroup=cgroup)
    assert (found.cpus_milli, found.memory_bytes) == (500, 8192)


def test_the_real_machine_has_cores_and_memory() -> None:
    found = read_machine()
    assert found.cpus_milli >= 1
    assert found.memory_bytes > 0


def test_memory_that_is_not_there() -> None:
    assert parse_memory_total("") == 0
