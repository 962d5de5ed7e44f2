"""From an order to a Slurm job: the words of `sbatch`, the batch script, the plan of the runner.

One task is one Slurm job on one node, not one job per gang: a member is then stopped, replaced
and fenced alone, nodes of a gang may hold different numbers of devices, and nothing waits for
Slurm to gather a gang that Tercio has already placed.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from tercio.engines.base import TaskRef
from tercio.engines.containers import ContainerProgram
from tercio.engines.marks import MARKS
from tercio.engines.slurm.accounts import Account
from tercio.engines.slurm.enclosing import container_plan
from tercio.engines.slurm.text import read_numbers
from tercio.errors import TercioError
from tercio.launch.containers import image_problem
from tercio.model.effects import LaunchTask
from tercio.model.ids import JobId, NodeName
from tercio.model.resources import WHOLE_DEVICE_MILLI

MARK: Final = "tercio"
_MIB: Final = 1024**2
_MEMORY_FLOOR_MIB: Final = 256
_LIMIT_MARGIN_S: Final = 300.0
STANDARD_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Refused(TercioError):
    """The order cannot be carried out on this site; `is_retryable` when it could be later."""

    def __init__(self, message: str, *, is_retryable: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.is_retryable = is_retryable


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """Where an order goes in Slurm: names there, and what the node has.

    Attributes:
        node: Slurm's name of the node.
        partition: to submit to.
        gres_types: Slurm's type of each device of the node; empty strings where it has none.
        memory_bytes: of the node.
    """

    node: str
    partition: str
    gres_types: tuple[str, ...]
    memory_bytes: int


class Tag(msgspec.Struct, frozen=True, kw_only=True):
    """What the comment of a Slurm job of ours says."""

    owner: str
    ref: TaskRef
    devices: tuple[int, ...]


def comment_of(order: LaunchTask, owner: str) -> str:
    """Return the comment by which a restarted server finds its job again.

    `tercio OWNER launch:job-00001/1/0 NODE 0,1`: the effect, its node, Tercio's device numbers.
    """
    devices = ",".join(str(device.share.index) for device in order.devices) or "-"
    return f"{MARK} {owner} launch:{_key(order)} {order.node} {devices}"


def read_comment(comment: str) -> Tag | None:
    """Return what the comment of one of our jobs says, None for anybody else's."""
    words = comment.split()
    if len(words) != 5 or words[0] != MARK or not words[2].startswith("launch:"):
        return None
    parts = words[2].removeprefix("launch:").split("/")
    if len(parts) != 3 or not (parts[1].isdigit() and parts[2].isdigit()):
        return None
    ref = TaskRef(
        job_id=JobId(parts[0]), attempt=int(parts[1]), task=int(parts[2]), node=NodeName(words[3])
    )
    return Tag(owner=words[1], ref=ref, devices=read_numbers(words[4]))


def job_name(ref: TaskRef) -> str:
    """Return the name of a task's Slurm job: `tercio-job-00001.1.0`."""
    return _name(ref.key)


def sbatch_words(
    order: LaunchTask,
    seat: Seat,
    *,
    owner: str,
    directory: str,
    is_pinned: bool,
    extra: Sequence[str] = (),
) -> list[str]:
    """Return the command that submits the task. Raises Refused."""
    memory_mib = math.ceil(order.memory_bytes / _MIB) or _default_mib(order, seat)
    words = [
        "sbatch", "--parsable", "--no-requeue", "--nodes=1", "--ntasks=1", "--export=ALL",
        f"--job-name={_name(_key(order))}",
        f"--comment={comment_of(order, owner)}",
        f"--partition={seat.partition}",
        f"--cpus-per-task={max(1, math.ceil(order.cpus_milli / 1000))}",
        f"--mem={memory_mib}M",
        f"--output={directory}/slurm.out", "--open-mode=append", "--input=/dev/null",
        f"--signal=B:TERM@{max(1, min(65_535, math.ceil(order.grace_s)))}",
    ]  # fmt: skip
    if is_pinned:
        words.append(f"--nodelist={seat.node}")
    gres = gres_of(order, seat)
    if gres:
        words.append(f"--gres={gres}")
    if order.limit_s is not None:
        minutes = math.ceil((order.limit_s + order.grace_s + _LIMIT_MARGIN_S) / 60)
        words.append(f"--time={minutes}")
    return [*words, *extra]


def gres_of(order: LaunchTask, seat: Seat) -> str:
    """Return `gpu:h100:4`, or an empty string for no device. Raises Refused."""
    counts: dict[str, int] = {}
    for device in order.devices:
        share = device.share
        if share.milli != WHOLE_DEVICE_MILLI or share.mig_profile:
            raise Refused("this site gives whole devices only")
        if share.index >= len(seat.gres_types):
            raise Refused(f"node {seat.node} has no device {share.index}")
        kind = seat.gres_types[share.index]
        counts[kind] = counts.get(kind, 0) + 1
    return ",".join(f"gpu:{kind}:{n}" if kind else f"gpu:{n}" for kind, n in counts.items())


def script_of(python: str, runner: str, directory: str) -> str:
    """Return the batch script: it becomes the runner, which no early signal can miss."""
    words = shlex.join([python, runner, directory])
    return f"#!/bin/sh\ntrap '' TERM\nexec {words}\n"


def plan_of(
    order: LaunchTask,
    secrets: Mapping[str, str],
    *,
    account: Account,
    task_dir: str,
    cwd: str | None,
    path: str,
    log_cap_bytes: int,
    program: ContainerProgram,
) -> tuple[bytes, dict[str, str]]:
    """Return what the runner reads: environment, scripts' facts, limits. Raises Refused.

    And the files that a container needs in the task's directory. `path` is the task's PATH,
    `cwd` where it starts, None for its own directory.
    """
    _check_image(order, program)
    missing = [name for name in order.secrets if name not in secrets]
    if missing:
        raise Refused(f"no value for secret {', '.join(missing)}")
    env = _environment(order, secrets, account=account, task_dir=task_dir, cwd=cwd, path=path)
    checkpoints = env.get("TERCIO_CHECKPOINT_DIR", "")
    directories = tuple(
        each for each in (env.get("TERCIO_OUTPUT_DIR", ""), checkpoints) if each.startswith("/")
    )
    container, files = None, dict[str, str]()
    if order.image:
        container, files = container_plan(
            order, program, env=env, task_dir=task_dir, cwd=cwd or task_dir,
            directories=directories,
        )  # fmt: skip
    plan = {
        "container": container,
        "directories": directories if container else (),
        "shm_bytes": order.shm_bytes,
        "env": env,
        "cwd": cwd or task_dir,
        "outputs": env.get("TERCIO_OUTPUT_DIR"),
        "shell": "/bin/bash",
        "has_setup": order.setup is not None,
        "grace_s": order.grace_s,
        "log_cap_bytes": log_cap_bytes,
        "device_count": len(order.devices),
    }
    return json.dumps(plan).encode(), files


def _environment(
    order: LaunchTask,
    secrets: Mapping[str, str],
    *,
    account: Account,
    task_dir: str,
    cwd: str | None,
    path: str,
) -> dict[str, str]:
    """Return the complete environment of a task, but for what Slurm says of its devices."""
    env = {
        "PATH": path or STANDARD_PATH,
        "HOME": account.home,
        "USER": account.name,
        "LOGNAME": account.name,
        "SHELL": account.shell,
        "PYTHONUNBUFFERED": "1",
    }
    for name, value in order.env.items():
        env[name] = value.replace("${TERCIO_TASK_DIR}", task_dir)
    env |= {name: secrets[name] for name in order.secrets}
    env |= {
        "TERCIO_JOB": order.job_id,
        "TERCIO_ATTEMPT": str(order.attempt),
        # A task that joined a running gang is the member whose place it takes.
        "TERCIO_TASK": order.env.get("TERCIO_TASK", str(order.task)),
        "TERCIO_NODE": order.node,
        "TERCIO_TASK_DIR": task_dir,
        "TERCIO_MARKS": f"{task_dir}/{MARKS}",
    }
    if order.outputs:
        base = cwd or task_dir
        env["TERCIO_OUTPUT_DIR"] = (
            order.outputs if order.outputs.startswith("/") else f"{base}/{order.outputs}"
        )
    return env


def _check_image(order: LaunchTask, program: ContainerProgram) -> None:
    if not order.image:
        return
    if not program.name:
        raise Refused(f"this site runs no container images: {program.why}")
    why = image_problem(program.name, order.image)
    if why:
        raise Refused(why)


def check_files(order: LaunchTask) -> None:
    """Raise Refused for a file that would leave the task's directory."""
    for name in order.files:
        if name.startswith("/") or ".." in name.split("/") or not name:
            raise Refused(f"file name '{name}' leaves the task's directory")


def _default_mib(order: LaunchTask, seat: Seat) -> int:
    """Return memory for an order that names none: its devices' part of the node."""
    part = len(order.devices) / max(1, len(seat.gres_types))
    return max(_MEMORY_FLOOR_MIB, int(seat.memory_bytes / _MIB * part * 0.9))


def _name(key: str) -> str:
    return f"{MARK}-{key.replace('/', '.')}"


def _key(order: LaunchTask) -> str:
    return f"{order.job_id}/{order.attempt}/{order.task}"
