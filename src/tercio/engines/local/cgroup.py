"""Control groups of this machine: what can be limited here, and the groups of one task.

Version 2 where its controllers are delegated to us, version 1 where its hierarchies are
writable, both at once on hybrid machines. Groups are made below our own, so limits of a
container around the server still hold. Without write access nothing is limited, and
`Cgroups.notes` says so.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec

_CPU_PERIOD_US = 100_000
_SERVER_LEAF = "tercio-server"
_NO_CONTROLLER = "no writable cgroup with the {} controller; run the server in a delegated cgroup"


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """One mounted hierarchy.

    Attributes:
        version: 1 or 2.
        controllers: of version 1; empty for version 2.
        directory: where our own group of this hierarchy is.
    """

    version: int
    controllers: tuple[str, ...]
    directory: str


class Cgroups(msgspec.Struct, frozen=True, kw_only=True):
    """Directories to make groups in; an empty string where there is none.

    Attributes:
        memory, cpu: by controller, with the version that provides it.
        tree: version 2 directory, whose groups can be ended whole.
        notes: by capability that is missing, why.
    """

    memory: str = ""
    memory_version: int = 1
    cpu: str = ""
    cpu_version: int = 1
    tree: str = ""
    notes: dict[str, str] = {}

    def task_groups(
        self, name: str, *, cpus_milli: int, memory_bytes: int
    ) -> list[tuple[str, list[tuple[str, str]]]]:
        """Return the groups of one task with the files to write; 0 sets no limit."""
        groups: dict[str, list[tuple[str, str]]] = {}
        if self.tree:
            groups[f"{self.tree}/{name}"] = []
        if self.memory and memory_bytes:
            files = groups.setdefault(f"{self.memory}/{name}", [])
            files.extend(_memory_files(self.memory, self.memory_version, memory_bytes))
        if self.cpu and cpus_milli:
            quota = str(max(1000, cpus_milli * _CPU_PERIOD_US // 1000))
            files = groups.setdefault(f"{self.cpu}/{name}", [])
            if self.cpu_version == 2:
                files.append(("cpu.max", f"{quota} {_CPU_PERIOD_US}"))
            else:
                files.append(("cpu.cfs_period_us", str(_CPU_PERIOD_US)))
                files.append(("cpu.cfs_quota_us", quota))
        return list(groups.items())


def _memory_files(parent: str, version: int, memory_bytes: int) -> list[tuple[str, str]]:
    """Return the limit, without swap beyond it where the kernel counts swap."""
    size = str(memory_bytes)
    if version == 2:
        files = [("memory.max", size), ("memory.oom.group", "1")]
        if os.path.exists(f"{parent}/memory.swap.max"):
            files.append(("memory.swap.max", "0"))
        return files
    files = [("memory.limit_in_bytes", size)]
    if os.path.exists(f"{parent}/memory.memsw.limit_in_bytes"):
        files.append(("memory.memsw.limit_in_bytes", size))
    return files


def parse_mounts(mountinfo: str, own: str) -> list[Mount]:
    """Read /proc/self/mountinfo and /proc/self/cgroup (cgroups(7), proc(5))."""
    paths: dict[str, str] = {}
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path
    mounts = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, (kind, _, options) = left.split(), right.split(maxsplit=2)
        root, point = fields[3], fields[4]
        if kind == "cgroup2":
            directory = _below(point, root, paths.get("", "/"))
            mounts.append(Mount(version=2, controllers=(), directory=directory))
        elif kind == "cgroup":
            controllers_here = tuple(c for c in options.split(",") if c in paths and c)
            if controllers_here:
                directory = _below(point, root, paths[controllers_here[0]])
                mounts.append(Mount(version=1, controllers=controllers_here, directory=directory))
    return mounts


def _below(point: str, root: str, path: str) -> str:
    """Return the directory of the group `path` in a mount that shows `root` at `point`."""
    inside = os.path.relpath(path, root) if path.startswith(root) else path.lstrip("/")
    return os.path.normpath(f"{point}/{inside}")


def detect(name: str, *, proc: Path = Path("/proc/self")) -> Cgroups:
    """Find what can be limited, and make the parent group `name` in each hierarchy used."""
    try:
        mounts = parse_mounts((proc / "mountinfo").read_text(), (proc / "cgroup").read_text())
    except (OSError, ValueError):
        mounts = []
    memory, cpu, tree = "", "", ""
    memory_version, cpu_version = 1, 1
    for mount in mounts:
        if mount.version == 2:
            parent, enabled = _open_version_2(mount.directory, name)
            tree = parent
            if "memory" in enabled:
                memory, memory_version = parent, 2
            if "cpu" in enabled:
                cpu, cpu_version = parent, 2
        elif "memory" in mount.controllers and not memory:
            memory = _open_version_1(mount.directory, name, "memory.limit_in_bytes")
        elif "cpu" in mount.controllers and not cpu:
            cpu = _open_version_1(mount.directory, name, "cpu.cfs_quota_us")
    notes = {}
    if not memory:
        notes["limits_memory"] = _NO_CONTROLLER.format("memory")
    if not cpu:
        notes["limits_cpus"] = _NO_CONTROLLER.format("cpu")
    return Cgroups(
        memory=memory,
        memory_version=memory_version,
        cpu=cpu,
        cpu_version=cpu_version,
        tree=tree,
        notes=notes,
    )


def remove(cgroups: Cgroups) -> None:
    """Remove the parent groups, where no task is left in them."""
    for directory in {cgroups.memory, cgroups.cpu, cgroups.tree} - {""}:
        try:
            os.rmdir(directory)
        except OSError:
            continue


def _open_version_1(directory: str, name: str, control: str) -> str:
    parent = f"{directory}/{name}"
    try:
        os.makedirs(parent, exist_ok=True)
    except OSError:
        return ""
    return parent if os.access(f"{parent}/{control}", os.W_OK) else ""


def _open_version_2(directory: str, name: str) -> tuple[str, frozenset[str]]:
    """Return our parent group, empty when there can be none, and the controllers in it."""
    base = Path(directory)
    if base.name == _SERVER_LEAF:
        base = base.parent
    parent = base / name
    try:
        parent.mkdir(exist_ok=True)
        present = set((base / "cgroup.controllers").read_text().split())
        enabled = {c for c in ("memory", "cpu") if c in present and _enable(base, c)}
        enabled = {c for c in sorted(enabled) if _enable(parent, c)}
    except OSError:
        return "", frozenset()
    if not os.access(parent / "cgroup.procs", os.W_OK):
        return "", frozenset()
    return str(parent), frozenset(enabled)


def _enable(group: Path, controller: str) -> bool:
    """Hand a controller to the children of a group.

    A group with processes of its own may not do that, so the server moves into a leaf first
    (cgroup v2 documentation of the kernel, "No Internal Process Constraint").
    """
    control = group / "cgroup.subtree_control"
    for is_first in (True, False):
        try:
            control.write_text(f"+{controller}")
        except OSError as error:
            if error.errno != errno.EBUSY or not is_first:
                return False
            leaf = group / _SERVER_LEAF
            try:
                leaf.mkdir(exist_ok=True)
                (leaf / "cgroup.procs").write_text(str(os.getpid()))
            except OSError:
                return False
        else:
            return True
    return False
