"""Cores and memory of this machine that the server may use, from /proc and its cgroups."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

_UNLIMITED = 1 << 60
"""Version 1 writes a limit near 2**63 for none."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Cores in thousandths and memory in bytes, limits of a container around us counted."""

    cpus_milli: int
    memory_bytes: int


def read_machine(*, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> Machine:
    """Return what this process may use of the machine. Raises OSError without /proc."""
    groups = _own_groups((proc / "self/cgroup").read_text(), cgroup)
    cpus_milli = len(os.sched_getaffinity(0)) * 1000
    memory_bytes = parse_memory_total((proc / "meminfo").read_text())
    for group in groups:
        cpus_milli = min(cpus_milli, _cpu_limit_milli(group))
        memory_bytes = min(memory_bytes, _memory_limit(group))
    return Machine(cpus_milli=cpus_milli, memory_bytes=memory_bytes)


def parse_memory_total(meminfo: str) -> int:
    """Return MemTotal of /proc/meminfo in bytes (proc(5)); 0 when it is not there."""
    for line in meminfo.splitlines():
        name, _, rest = line.partition(":")
        if name == "MemTotal":
            return int(rest.split()[0]) * 1024
    return 0


def _own_groups(own: str, root: Path) -> list[Path]:
    """Return our groups and all above them, in the usual mount places of both versions."""
    groups = []
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        mounts = [root, root / "unified"] if not controllers else [root / controllers]
        for mount in mounts:
            group = mount / path.lstrip("/")
            while group.is_relative_to(mount):
                groups.append(group)
                group = group.parent
    return groups


def _cpu_limit_milli(group: Path) -> int:
    quota, period = (
        _words(group / "cpu.max", 2)
        or (
            *_words(group / "cpu.cfs_quota_us", 1),
            *_words(group / "cpu.cfs_period_us", 1),
        )
        or ("max", "0")
    )
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return _UNLIMITED
    return max(1, int(quota) * 1000 // int(period))


def _memory_limit(group: Path) -> int:
    for name in ("memory.max", "memory.limit_in_bytes"):
        words = _words(group / name, 1)
        if words and words[0].isdigit():
            return min(int(words[0]), _UNLIMITED)
    return _UNLIMITED


def _words(path: Path, count: int) -> tuple[str, ...]:
    try:
        words = path.read_text().split()
    except OSError:
        return ()
    return tuple(words[:count]) if len(words) >= count else ()
