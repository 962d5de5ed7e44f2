"""How the tasks of a gang find each other, by framework.

| framework | a task starts | it gets |
|---|---|---|
| plain | the command | MASTER_ADDR, MASTER_PORT, NODE_RANK, the names of other tools |
| torch | the command, as one rank | + RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE |
| torchrun | torchrun, which starts the command once per device | torchrun's own |
| tensorflow | the command, as one worker | + TF_CONFIG |
| jax | the command, as one process | + JAX_COORDINATOR_ADDRESS, ... |
| mpi | the command in task 0 alone | + host files, see `launch.mpi` |
| ray, dask | a cluster of the job's own; the command in task 0 | see `launch.owned` |

Of a task's ports the first is the gang's MASTER_PORT where the task is task 0, the second
belongs to the framework's own server, the last to the barrier of MPI, Ray and Dask; the others
are free.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, assert_never

import msgspec

from tercio.launch import mpi, owned, preflight
from tercio.launch.environment import conveniences, tercio_variables
from tercio.launch.fabric import fabric_advice, nccl_variables, without_debugging
from tercio.launch.gang import Gang, leaf_groups
from tercio.model.ids import JobId, NodeName, job_number
from tercio.model.job import Framework, JobSpec
from tercio.model.node import NodeSpec
from tercio.model.placement import TaskPlacement

SCRIPT: Final = "tercio-run.sh"
TF_ROLES: Final = ("chief", "worker", "ps", "evaluator")
# torchrun kills its workers when this has passed since the stop signal; the rest of the grace
# is for torchrun to see them end and to leave by itself.
SHUTDOWN_MARGIN_S: Final = 5.0


class TaskLaunch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one task starts.

    Attributes:
        task: index in the job.
        command: shell script.
        setup: shell script to run before it, or None.
        env: complete job environment; values may refer to `${TERCIO_TASK_DIR}`.
        files: texts by name, to be written into the task's directory.
    """

    task: int
    command: str
    setup: str | None = None
    env: dict[str, str] = {}
    files: dict[str, str] = {}


def render(
    spec: JobSpec,
    *,
    job_id: JobId,
    attempt: int,
    tasks: tuple[TaskPlacement, ...],
    nodes: Mapping[NodeName, NodeSpec],
    ports: Mapping[int, tuple[int, ...]],
) -> tuple[TaskLaunch, ...]:
    """Return the launches of one attempt, in the order of `tasks`.

    `ports` are TCP ports by task index, at least two each, that no other live task of the
    task's node has. Order of precedence in the environment: `TERCIO_*`, the job's own `env`,
    the framework's variables, the names of other tools.
    """
    gang = Gang(spec, job_id=job_id, attempt=attempt, tasks=tasks, nodes=nodes, ports=ports)
    return tuple(_launch(gang, member) for member in range(gang.size))


def _launch(gang: Gang, member: int) -> TaskLaunch:
    spec = gang.spec
    command, files = _script(spec), dict[str, str]()
    match spec.framework:
        case Framework.PLAIN:
            env: dict[str, str] = {}
        case Framework.TORCH:
            env = _torch(gang, member)
        case Framework.TORCHRUN:
            env = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(_shutdown_s(spec))}
            files[SCRIPT] = command
            command = _torchrun(gang, member)
        case Framework.TENSORFLOW:
            env = {"TF_CONFIG": _tf_config(gang, member)}
        case Framework.JAX:
            env = _jax(gang, member)
        case Framework.MPI:
            env = mpi.mpi_variables(gang)
            files = {SCRIPT: command, mpi.BARRIER: mpi.BARRIER_SOURCE, **mpi.mpi_files(gang)}
            command = mpi.mpi_command(gang, member, SCRIPT)
        case Framework.RAY | Framework.DASK:
            env = owned.cluster_variables(gang)
            files = {SCRIPT: command, **owned.cluster_files(gang, member)}
            command = owned.cluster_command(member, SCRIPT)
        case unknown:
            assert_never(unknown)
    seconds = spec.checks.allreduce_s
    if seconds is not None and gang.size > 1:
        files[preflight.PROBE] = preflight.PROBE_SOURCE
        command = preflight.preflight_line(gang, member, seconds) + command
    ours = {name: value for name, value in env.items() if name.startswith("TERCIO_")}
    return TaskLaunch(
        task=gang.tasks[member].task,
        command=command,
        setup=spec.setup,
        env=conveniences(gang, member)
        | nccl_variables(gang.nodes)
        | env
        | without_debugging(spec.env)
        | tercio_variables(gang, member)
        | ours,
        files=files,
    )


def _script(spec: JobSpec) -> str:
    """Return the command, kept alive over a checkpoint signal that reaches the whole task.

    The shell would die of SIGUSR1 before its child has saved. `trap :` lets it live, and
    unlike an ignored signal is undone in the programs that it starts.
    """
    signal = _user_signal(spec)
    return f"trap : {signal}\n{spec.run}" if signal else spec.run


def _user_signal(spec: JobSpec) -> str | None:
    signal = (spec.checkpoint.signal or "").removeprefix("SIG")
    return signal if signal in ("USR1", "USR2") else None


def _torch(gang: Gang, member: int) -> dict[str, str]:
    node = gang.node_indexes[member]
    return {
        "RANK": str(member),
        "WORLD_SIZE": str(gang.size),
        "LOCAL_RANK": str(gang.local_indexes[member]),
        "LOCAL_WORLD_SIZE": str(gang.node_indexes.count(node)),
    }


def _torchrun(gang: Gang, member: int) -> str:
    """Return the shell script that starts torchrun, from wherever PyTorch was installed.

    An agent's `--node-rank` is the task's index, as two tasks may share a node. torchrun
    itself ignores the checkpoint signal, which its workers get directly.
    """
    address, port = gang.master
    signal = _user_signal(gang.spec)
    lines = [f"trap '' {signal}"] if signal else []
    lines += [
        "if command -v torchrun >/dev/null 2>&1; then set -- torchrun",
        "else set -- python3 -m torch.distributed.run; fi",
        f'exec "$@" --nnodes={gang.size} --nproc-per-node={gang.ranks(member)} '
        f"--node-rank={member} --rdzv-id={gang.job_id}-{gang.attempt} "
        f"--master-addr={address} --master-port={port} --max-restarts=0 "
        f'--no-python "${{BASH:-sh}}" "$TERCIO_TASK_DIR/{SCRIPT}"',
    ]
    return "\n".join(lines) + "\n"


def _shutdown_s(spec: JobSpec) -> int:
    grace_s = spec.checkpoint.grace_s
    return max(1, int(grace_s - min(SHUTDOWN_MARGIN_S, grace_s / 2)))


def _tf_config(gang: Gang, member: int) -> str:
    """Return TF_CONFIG: groups named chief, ps or evaluator have that role, others work."""
    cluster: dict[str, list[str]] = {}
    own_role, own_index = "worker", 0
    for other in range(gang.size):
        name = gang.group(other).name
        role = name if name in TF_ROLES else "worker"
        address, port = gang.endpoint(other)
        members = cluster.setdefault(role, [])
        if other == member:
            own_role, own_index = role, len(members)
        members.append(f"{address}:{port}")
    # An evaluator is not part of the cluster that it evaluates for.
    cluster.pop("evaluator", None)
    task = {"type": own_role, "index": own_index}
    return json.dumps({"cluster": cluster, "task": task}, separators=(",", ":"))


def _jax(gang: Gang, member: int) -> dict[str, str]:
    """Return what makes `jax.distributed.initialize()` work without an argument.

    JAX reads the coordinator and the devices by its own names, but the number of processes and
    its own only from the environments of schedulers that it knows (`jax._src.clusters`): of
    those names, these five are all that it asks for. Nothing here looks for `srun`.
    """
    address, port = gang.endpoint(0)
    count, rank = str(gang.size), str(member)
    return {
        "JAX_COORDINATOR_ADDRESS": f"{address}:{port}",
        "JAX_NUM_PROCESSES": count,
        "JAX_PROCESS_ID": rank,
        # A task sees its own devices alone, numbered from 0; the default is one per process.
        "JAX_LOCAL_DEVICE_IDS": ",".join(map(str, range(gang.ranks(member)))),
        "SLURM_JOB_ID": str(job_number(gang.job_id)),
        "SLURM_STEP_NODELIST": ",".join(gang.node_names),
        "SLURM_NTASKS": count,
        "SLURM_PROCID": rank,
        "SLURM_LOCALID": str(gang.local_indexes[member]),
    }


def advise(spec: JobSpec) -> tuple[str, ...]:
    """Return what the user should know about the framework, the shape and the environment."""
    return (*_framework_advice(spec), *fabric_advice(spec.env))


def _framework_advice(spec: JobSpec) -> tuple[str, ...]:
    groups = leaf_groups(spec)
    most = max(
        (
            request.count_max or request.count
            for group in groups
            for request in group.per_task.devices
        ),
        default=0,
    )
    if spec.framework is Framework.TORCH and most > 1:
        return (
            f"framework torch starts one rank per task, so {most} devices per task are used by "
            "one process; write framework: torchrun for one rank per device",
        )
    if spec.framework is Framework.MPI and spec.task_count > 1:
        return (
            "framework mpi runs the command in task 0 only; mpirun must reach the other nodes "
            "itself, and each node should hold one task with all its devices",
        )
    if spec.framework in (Framework.RAY, Framework.DASK) and spec.task_count > 1:
        return (
            f"framework {spec.framework.value} runs the command in task 0 only; the other tasks "
            "are workers of the cluster that it finds by itself",
        )
    return ()
