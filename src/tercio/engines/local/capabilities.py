"""What this machine can do, for the engine's answer and for the labels of its nodes."""

from __future__ import annotations

import os

import msgspec

from tercio.engines.base import Capabilities
from tercio.engines.containers import ContainerProgram
from tercio.engines.local.cgroup import Cgroups
from tercio.launch.containers import DAEMON_PROGRAMS
from tercio.model.node import CONTAINERS_LABEL, NodeSpec


def capabilities_of(
    cgroups: Cgroups, program: ContainerProgram, *, cuts_missing: str
) -> Capabilities:
    """Return what works here, and in words why something does not."""
    notes = dict(cgroups.notes)
    if not program.name:
        notes["runs_images"] = program.why
    if program.name not in DAEMON_PROGRAMS:
        notes["shm"] = "tasks share /dev/shm of this machine; its size is not set per task"
    if cuts_missing:
        notes["cuts_devices"] = cuts_missing
    if os.geteuid() != 0:
        notes["switches_user"] = "the server is not root; tasks run as its own user"
    return Capabilities(
        survives_server=True,
        isolates_devices=True,
        limits_memory=bool(cgroups.memory),
        limits_cpus=bool(cgroups.cpu),
        signals=True,
        suspends=True,
        executes=True,
        runs_images=bool(program.name),
        switches_user=os.geteuid() == 0,
        cuts_devices=not cuts_missing,
        reads_marks=True,
        notes=notes,
    )


def labelled(
    read: NodeSpec | tuple[NodeSpec, ...], program: ContainerProgram
) -> tuple[NodeSpec, ...]:
    """Return the nodes with the label that says what runs images there."""
    return tuple(
        msgspec.structs.replace(spec, labels={**spec.labels, CONTAINERS_LABEL: program.label})
        for spec in ((read,) if isinstance(read, NodeSpec) else read)
    )
