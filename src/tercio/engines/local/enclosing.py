"""A task with an image: its plan becomes one that runs in a container."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tercio.engines.containers import PASSED_ENV, ContainerProgram
from tercio.engines.local.accounts import Account
from tercio.engines.local.processes import Plan
from tercio.launch import containers
from tercio.launch.containers import Container
from tercio.model.effects import LaunchTask

SHM: Final = "/dev/shm"
_HOST_NAMES: Final = ("PATH", "HOME", "USER", "LOGNAME", "SHELL")


def shm_problem(order: LaunchTask, program: str) -> str:
    """Return why the task cannot have the shared memory it asks for, or an empty string.

    Only docker and podman give a task a `/dev/shm` of its own; anything else has the node's.
    """
    if order.shm_bytes is None or program in containers.DAEMON_PROGRAMS:
        return ""
    try:
        found = os.statvfs(SHM)
    except OSError as error:
        return f"{SHM}: {error.strerror}"
    size_bytes = found.f_blocks * found.f_frsize
    if size_bytes >= order.shm_bytes:
        return ""
    return (
        f"{SHM} of {order.node} holds {size_bytes / 1024**3:.3g} GiB, and the task needs "
        f"{order.shm_bytes / 1024**3:.3g} GiB: mount it larger, or ask for less"
    )


def problem(order: LaunchTask, program: ContainerProgram) -> str:
    """Return why an order cannot run here because of its image or its shared memory."""
    if order.image:
        if not program.name:
            return f"{order.node} runs no container images: {program.why}"
        why = containers.image_problem(program.name, order.image)
        if why:
            return why
        missing = [mount.source for mount in order.mounts if not os.path.exists(mount.source)]
        if missing:
            return f"mounts: {', '.join(missing)} is not there on {order.node}"
    return shm_problem(order, program.name if order.image else "")


def enclose(
    plan: Plan,
    order: LaunchTask,
    *,
    program: ContainerProgram,
    account: Account,
    task_dir: Path,
    host_names: frozenset[str],
) -> dict[str, str]:
    """Make the plan run its task in a container; return the files that this needs.

    The program runs as the task's user, so that nobody reaches by an image or a mount what that
    user could not reach alone.

    `host_names` are variables of the plan that describe this machine and mean nothing inside.
    """
    assert order.image is not None
    by_daemon = program.name in containers.DAEMON_PROGRAMS
    own = {*order.env, *order.secrets}
    inside = {
        name: value
        for name, value in plan.env.items()
        if name in own or not (name in _HOST_NAMES or name in host_names)
    }
    cwd = plan.cwd or str(task_dir)
    root = hashlib.sha256(os.fsencode(task_dir)).hexdigest()[:8]
    container = Container(
        image=order.image,
        name=f"tercio-{plan.begun['name']}-{root}",
        task_dir=str(task_dir),
        cwd=cwd,
        directories=tuple(plan.directories),
        mounts=order.mounts,
        env_names=tuple(inside),
        user=_user(account) if program.name == "docker" else None,
        is_rootless=program.name == "podman" and account.uid != 0,
        devices=order.devices,
        shm_bytes=order.shm_bytes,
        memory_bytes=order.memory_bytes,
        cpus_milli=order.cpus_milli,
    )
    name, path = program.name, program.path
    entry = containers.entry_script(
        task_dir=str(task_dir), cwd=cwd, job_env=own, has_setup=order.setup is not None,
        has_env_file=False, is_first=by_daemon,
    )  # fmt: skip
    plan.argv, plan.setup_argv = containers.run_words(name, path, container), None
    plan.env = _program_env(plan.env, inside, is_own=account.is_self)
    plan.container = {
        "pids": containers.pids_words(name, path, container.name),
        "oom": containers.out_of_memory_words(name, path, container.name),
        "remove": containers.remove_words(name, path, container.name),
        "exec": containers.exec_words(name, path, container, has_terminal=False),
        "exec_terminal": containers.exec_words(name, path, container, has_terminal=True),
    }
    plan.begun["container"] = "\n".join(plan.container["remove"])
    files = {containers.ENTRY: entry, containers.RUN: order.command}
    if order.setup is not None:
        files[containers.SETUP] = order.setup
    return files


def _user(account: Account) -> tuple[int, int, tuple[int, ...]] | None:
    """Return whom docker is to run the task as, which would be root for everybody."""
    if account.uid == 0:
        return None
    return account.uid, account.gid, account.groups


def _program_env(
    whole: Mapping[str, str], inside: dict[str, str], *, is_own: bool
) -> dict[str, str]:
    """Return the environment of the program itself, with what it hands over."""
    env = {name: whole[name] for name in _HOST_NAMES}
    if is_own:
        env.update({name: os.environ[name] for name in PASSED_ENV if name in os.environ})
    return env | inside
