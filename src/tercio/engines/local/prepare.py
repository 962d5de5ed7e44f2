"""From an order to a plan: directories, files, snapshot and environment of one task."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath

from tercio.engines.containers import ContainerProgram
from tercio.engines.local import records
from tercio.engines.local.accounts import Account, account_of
from tercio.engines.local.cgroup import Cgroups
from tercio.engines.local.enclosing import enclose, problem
from tercio.engines.local.processes import Plan
from tercio.engines.local.settings import STANDARD_PATH, LocalSettings
from tercio.engines.local.unpack import unpack_member
from tercio.engines.marks import MARKS
from tercio.errors import TercioError, UserError
from tercio.model.effects import LaunchTask

WorkdirOf = Callable[[str], Path]
"""Returns the tar.gz of a snapshot id; raises UserError for an unknown one."""

_PASSING = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
)
"""Faults of this machine; any other that unpacking meets is in the snapshot, and stays."""

_INLINE_BYTES_MAX = 96 * 1024
"""One argument of a program holds 128 KiB (MAX_ARG_STRLEN); longer scripts go to a file."""


class Refused(TercioError):
    """The task cannot be started here; `is_retryable` says whether it could be later."""

    def __init__(self, message: str, *, is_retryable: bool) -> None:
        super().__init__(message)
        self.message = message
        self.is_retryable = is_retryable


def make_plan(
    order: LaunchTask,
    secrets: Mapping[str, str],
    *,
    directory: Path,
    settings: LocalSettings,
    cgroups: Cgroups,
    vendors: frozenset[str],
    workdir_of: WorkdirOf | None,
    program: ContainerProgram = ContainerProgram(),  # noqa: B008 - a frozen value
) -> Plan:
    """Make the task's directories and return what its supervisor runs. Blocks on the disk.

    `vendors` are those of the accelerators of this machine. Raises Refused.
    """
    _check(order, secrets, program)
    try:
        account = account_of(order.user, run_as=settings.run_as)
        task_dir = _make_directories(directory, account)
        _write_files(task_dir, order.files, account)
        cwd = _workdir(order, directory.parent, account, settings, workdir_of)
        env = environment(
            order, secrets, task_dir=task_dir, account=account, settings=settings, vendors=vendors
        )
        if order.outputs:
            env["TERCIO_OUTPUT_DIR"] = os.path.join(cwd or task_dir, order.outputs)
        plan = Plan()
        plan.directory = str(directory)
        plan.argv = _shell(order.command, task_dir / ".tercio-run.sh", account)
        plan.setup_argv = None
        if order.setup:
            plan.setup_argv = _shell(order.setup, task_dir / ".tercio-setup.sh", account)
    except UserError as error:
        hint = f" ({error.hint})" if error.hint else ""
        raise Refused(error.message + hint, is_retryable=False) from error
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise Refused(f"{where}{error.strerror or error}", is_retryable=True) from error
    plan.env = env
    plan.cwd = cwd
    _fill(plan, order, account=account, settings=settings, cgroups=cgroups)
    if order.image:
        checkpoints = env.get("TERCIO_CHECKPOINT_DIR", "")
        plan.directories += [checkpoints] if checkpoints.startswith("/") else []
        files = enclose(
            plan, order, program=program, account=account, task_dir=task_dir,
            host_names=frozenset(settings.pass_env),
        )  # fmt: skip
        _write_files(task_dir, files, account)
    return plan


def _fill(
    plan: Plan, order: LaunchTask, *, account: Account, settings: LocalSettings, cgroups: Cgroups
) -> None:
    """Set what of a plan is only copied: whose it is, its limits, its record."""
    name = f"{order.job_id}.{order.attempt}.{order.task}"
    plan.directories = [plan.env["TERCIO_OUTPUT_DIR"]] if order.outputs else []
    plan.container = {}
    plan.user = None if account.is_self else (account.uid, account.gid, list(account.groups))
    plan.cgroups = cgroups.task_groups(
        name, cpus_milli=order.cpus_milli, memory_bytes=order.memory_bytes
    )
    plan.memory_bytes = order.memory_bytes
    plan.grace_s = order.grace_s
    plan.log_cap_bytes = settings.log_cap_bytes
    plan.begun = {
        "epoch": str(order.epoch),
        "name": name,
        "node": order.node,
        "user": account.name,
        "cgroups": ":".join(group for group, _ in plan.cgroups),
    }


def environment(
    order: LaunchTask,
    secrets: Mapping[str, str],
    *,
    task_dir: Path,
    account: Account,
    settings: LocalSettings,
    vendors: frozenset[str],
) -> dict[str, str]:
    """Return the complete environment of a task: a clean base, the order's, and its devices."""
    path = settings.path or (os.environ.get("PATH") if account.is_self else None)
    env = {
        "PATH": path or STANDARD_PATH,
        "HOME": account.home,
        "USER": account.name,
        "LOGNAME": account.name,
        "SHELL": account.shell,
        # Output reaches the log when it is printed, not when a buffer is full.
        "PYTHONUNBUFFERED": "1",
    }
    env.update({name: os.environ[name] for name in settings.pass_env if name in os.environ})
    for name, value in order.env.items():
        env[name] = value.replace("${TERCIO_TASK_DIR}", str(task_dir))
    env.update({name: secrets[name] for name in order.secrets})
    env.update(
        TERCIO_JOB=order.job_id,
        TERCIO_MARKS=str(task_dir / MARKS),
        TERCIO_ATTEMPT=str(order.attempt),
        # A task that joined a running gang is the member whose place it takes.
        TERCIO_TASK=order.env.get("TERCIO_TASK", str(order.task)),
        TERCIO_NODE=order.node,
        TERCIO_TASK_DIR=str(task_dir),
    )
    env.update(device_environment(order, vendors=vendors))
    return env


def device_environment(order: LaunchTask, *, vendors: frozenset[str]) -> dict[str, str]:
    """Return the variables that show a task its own accelerators and no others.

    Devices of a vendor that the machine has and the task has not are hidden from it. A device
    is named by its UUID, which stays when others vanish; by its index when it has none.
    """
    by_vendor: dict[str, list[str]] = {}
    for device in order.devices:
        name = device.uuid or str(device.share.index)
        by_vendor.setdefault(device.vendor, []).append(name)
    env = {"TERCIO_DEVICES": ",".join(str(device.share.index) for device in order.devices)}
    if "nvidia" in vendors or "nvidia" in by_vendor:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(by_vendor.get("nvidia", ()))
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if "amd" in vendors or "amd" in by_vendor:
        env["ROCR_VISIBLE_DEVICES"] = ",".join(by_vendor.get("amd", ()))
    return env


def _check(order: LaunchTask, secrets: Mapping[str, str], program: ContainerProgram) -> None:
    """Refuse what cannot run here, and, for now, a task whose first port is in use."""
    why = problem(order, program)
    if why:
        raise Refused(why, is_retryable=False)
    missing = [name for name in order.secrets if name not in secrets]
    if missing:
        raise Refused(f"no value for secret {', '.join(missing)}", is_retryable=False)
    if not order.ports:
        return
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", order.ports[0]))
        except OSError as error:
            raise Refused(
                f"port {order.ports[0]} is in use on {order.node}: {error.strerror}",
                is_retryable=True,
            ) from error


def _make_directories(directory: Path, account: Account) -> Path:
    """Make the control directory, passable for other users, and the task's own in it."""
    directory.mkdir(mode=0o711, parents=True, exist_ok=True)
    for parent in (directory, directory.parent, directory.parent.parent):
        parent.chmod(0o711)
    if not account.is_self:
        for parent in directory.parents:
            if not parent.stat().st_mode & 0o001:
                message = f"{account.name} may not pass through {parent} (chmod o+x {parent})"
                raise Refused(message, is_retryable=False)
    task_dir = directory / records.TASK
    task_dir.mkdir(mode=0o700, exist_ok=True)
    _give(task_dir, account)
    return task_dir


def _give(path: Path, account: Account) -> None:
    if not account.is_self:
        os.chown(path, account.uid, account.gid, follow_symlinks=False)


def _write_files(task_dir: Path, files: Mapping[str, str], account: Account) -> None:
    for name, text in files.items():
        pure = PurePosixPath(name)
        if pure.is_absolute() or ".." in pure.parts or not pure.parts:
            raise Refused(f"file name '{name}' leaves the task's directory", is_retryable=False)
        path = task_dir
        for part in pure.parts[:-1]:
            path /= part
            path.mkdir(mode=0o700, exist_ok=True)
            _give(path, account)
        _write_file(path / pure.name, text, account)


def _write_file(path: Path, text: str, account: Account) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    fd = os.open(path, flags, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    _give(path, account)


def _shell(script: str, path: Path, account: Account) -> list[str]:
    shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
    if len(script.encode(errors="surrogateescape")) <= _INLINE_BYTES_MAX:
        return [shell, "-c", script]
    _write_file(path, script, account)
    return [shell, str(path)]


def _workdir(
    order: LaunchTask,
    attempt_dir: Path,
    account: Account,
    settings: LocalSettings,
    workdir_of: WorkdirOf | None,
) -> str | None:
    """Return the directory to start in: None, an absolute path, or the unpacked snapshot.

    The tasks of an attempt on this node share one copy.
    """
    if order.workdir is None or order.workdir.startswith("/"):
        return order.workdir
    target = attempt_dir / "workdir"
    with open(attempt_dir / "workdir.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            if workdir_of is None:
                raise Refused("this site has no store of snapshots", is_retryable=False)
            fresh = attempt_dir / "workdir.new"
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir(mode=0o700)
            try:
                _unpack(workdir_of(order.workdir), fresh, account, settings.workdir_bytes_max)
            except BaseException:
                shutil.rmtree(fresh, ignore_errors=True)
                raise
            fresh.rename(target)
    return str(target)


def _unpack(archive: Path, target: Path, account: Account, size_bytes_max: int) -> None:
    """Unpack a snapshot; what would land outside, or is no file, is refused (PEP 706)."""
    size_bytes = 0
    try:
        with tarfile.open(archive, "r:*") as tar:
            for member in tar:
                size_bytes += member.size
                if size_bytes > size_bytes_max:
                    raise Refused("the snapshot unpacks to too much", is_retryable=False)
                unpack_member(tar, member, target)
    except Refused:
        raise
    except OSError as error:
        if error.errno in _PASSING:
            raise
        raise Refused(f"bad snapshot: {error}", is_retryable=False) from error
    except Exception as error:
        # Whatever `tarfile` makes of bytes that anybody may have written: an instant beyond
        # time is an OverflowError, a link to nothing a KeyError.
        raise Refused(f"bad snapshot: {error!r}", is_retryable=False) from error
    if not account.is_self:
        for parent, directories, files in os.walk(target):
            for name in (*directories, *files):
                os.chown(os.path.join(parent, name), account.uid, account.gid,
                         follow_symlinks=False)  # fmt: skip
        _give(target, account)
