"""What this Slurm can do, read from its own configuration."""

from __future__ import annotations

import re

from tercio.engines.base import Capabilities
from tercio.engines.containers import ContainerProgram
from tercio.engines.slurm.options import SlurmOptions


def read_config(text: str) -> dict[str, str]:
    """Return the settings of `scontrol show config` by name, cgroup.conf's included."""
    pairs = (re.match(r"\s*(\w+)\s*=\s*(.*?)\s*$", line) for line in text.splitlines())
    return {match[1]: match[2] for match in pairs if match}


def capabilities_of(
    text: str, options: SlurmOptions, *, is_root: bool, program: ContainerProgram
) -> Capabilities:
    """Return what works here, and in words why something does not."""
    config = read_config(text)
    has_cgroup = "task/cgroup" in config.get("TaskPlugin", "")
    constrains = {
        name: has_cgroup and config.get(f"Constrain{name}", "no").lower() == "yes"
        for name in ("Devices", "RAMSpace", "Cores")
    }
    notes: dict[str, str] = {}
    for name, key, what in (
        ("isolates_devices", "Devices", "devices are told by CUDA_VISIBLE_DEVICES, not enforced"),
        ("limits_memory", "RAMSpace", "memory is counted, not enforced"),
        ("limits_cpus", "Cores", "cores are counted, not enforced"),
    ):
        if not constrains[key]:
            notes[name] = f"{what}: set Constrain{key}=yes and TaskPlugin=task/cgroup in Slurm"
    if not program.name:
        notes["runs_images"] = program.why
    switches = is_root and not options.ssh
    if not switches:
        who = f"the login {options.ssh}" if options.ssh else "the server's own user"
        notes["switches_user"] = f"every Slurm job is submitted as {who}"
    return Capabilities(
        survives_server=True,
        isolates_devices=constrains["Devices"],
        limits_memory=constrains["RAMSpace"],
        limits_cpus=constrains["Cores"],
        signals=True,
        suspends=True,
        executes=True,
        runs_images=bool(program.name),
        switches_user=switches,
        closes_nodes=options.drains_nodes,
        reads_marks=True,
        notes=notes,
    )
