"""The variables every task gets, whatever its framework.

`TERCIO_*` are ours. The others are conveniences: names that scripts written for other tools
read, so that they move unchanged. In SkyPilot and dstack a "node" is one started command, which
is our task, so their node ranks are task indexes; the node numbers of Slurm are real nodes.
Slurm's names are left out for JAX and MPI, which would take them for a Slurm step and look for
`srun`.
"""

from __future__ import annotations

from typing import Final

from tercio.launch.gang import Gang
from tercio.model.ids import JobId, array_parent, job_number
from tercio.model.job import Framework
from tercio.model.sizing import choice_of

NO_SLURM_NAMES: Final = (Framework.JAX, Framework.MPI)
HOSTFILE: Final = "hostfile"
_MILLI: Final = 1000


def tercio_variables(gang: Gang, member: int) -> dict[str, str]:
    """Return our own variables; nothing the user sets replaces them."""
    task, spec = gang.tasks[member], gang.spec
    env = {
        "TERCIO_JOB": gang.job_id,
        "TERCIO_JOB_NAME": spec.name,
        "TERCIO_ATTEMPT": str(gang.attempt),
        "TERCIO_TASK": str(task.task),
        "TERCIO_TASKS": str(gang.size),
        "TERCIO_NODE": task.node,
        "TERCIO_NODES": ",".join(gang.node_names),
        "TERCIO_PORTS": ",".join(str(port) for port in gang.ports[member]),
        "TERCIO_GRACE_S": f"{spec.checkpoint.grace_s:g}",
    }
    group = gang.group(member).name
    if group:
        env["TERCIO_GROUP"] = group
    if spec.checkpoint.path is not None:
        env["TERCIO_CHECKPOINT_DIR"] = spec.checkpoint.path
    if spec.checkpoint.every_s is not None:
        env["TERCIO_CHECKPOINT_EVERY_S"] = f"{spec.checkpoint.every_s:.0f}"
    index = array_index(gang.job_id)
    if index is not None:
        env["TERCIO_ARRAY_INDEX"] = str(index)
    return env | sized_variables(gang)


def sized_variables(gang: Gang) -> dict[str, str]:
    """Return the layout that sizing chose for the devices the gang got; empty where it did not."""
    sized, model = gang.spec.sized, gang.spec.model
    if sized is None or model is None:
        return {}
    device, wanted = gang.first_devices[0], gang.group(0).per_task.devices
    found = choice_of(sized, wanted, device, gang.device_counts[0]) if device else None
    if found is None or found.layout is None:
        return {}
    layout = found.layout
    sizes = {
        name.upper(): str(getattr(layout, name))
        for name in (
            "tp", "pp", "cp", "ep", "dp", "sharding", "shard_group", "microbatches",
            "virtual_stages", "precision", "recompute",
        )
    }  # fmt: skip
    sizes |= {"MICRO_BATCH": f"{layout.micro_batch:g}", "SEQ": str(model.seq)}
    sizes |= {"METHOD": model.method}
    return {f"TERCIO_{name}": text for name, text in sizes.items()}


def conveniences(gang: Gang, member: int) -> dict[str, str]:
    """Return the names other tools taught scripts to read."""
    address, port = gang.master
    env = {
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "NODE_RANK": str(gang.node_indexes[member]),
        "SKYPILOT_NODE_RANK": str(member),
        "SKYPILOT_NODE_IPS": "\n".join(gang.addresses),
        "SKYPILOT_NUM_NODES": str(gang.size),
        "SKYPILOT_NUM_GPUS_PER_NODE": str(gang.device_counts[member]),
        "SKYPILOT_TASK_ID": f"tercio-{gang.job_id}-{gang.attempt}",
        "DSTACK_NODE_RANK": str(member),
        "DSTACK_NODES_NUM": str(gang.size),
        "DSTACK_NODES_IPS": "\n".join(gang.addresses),
        "DSTACK_MASTER_NODE_IP": gang.addresses[0],
        "DSTACK_GPUS_PER_NODE": str(gang.device_counts[member]),
        "DSTACK_GPUS_NUM": str(sum(gang.device_counts)),
        "DSTACK_RUN_NAME": gang.spec.name,
    }
    threads = omp_threads(gang, member)
    if threads is not None:
        env["OMP_NUM_THREADS"] = str(threads)
    if gang.spec.framework not in NO_SLURM_NAMES:
        env |= _slurm(gang, member)
    return env


def omp_threads(gang: Gang, member: int) -> int | None:
    """Return the threads of each process that a task starts, or None where cores are unknown.

    Without it every process of a gang starts one thread per core of the whole machine.
    """
    cores_milli = gang.tasks[member].cpus_milli
    if cores_milli <= 0:
        return None
    processes = gang.ranks(member) if gang.spec.framework is Framework.TORCHRUN else 1
    return max(1, cores_milli // _MILLI // processes)


def _slurm(gang: Gang, member: int) -> dict[str, str]:
    env = {
        "SLURM_JOB_ID": str(job_number(gang.job_id)),
        "SLURM_JOB_NAME": gang.spec.name,
        "SLURM_JOB_NUM_NODES": str(len(gang.node_names)),
        "SLURM_NNODES": str(len(gang.node_names)),
        "SLURM_JOB_NODELIST": ",".join(gang.node_names),
        "SLURM_GPUS_PER_NODE": str(gang.devices_on_node(member)),
        "SLURM_PROCID": str(member),
        "SLURM_LOCALID": str(gang.local_indexes[member]),
        "SLURM_NODEID": str(gang.node_indexes[member]),
    }
    index = array_index(gang.job_id)
    if index is not None:
        # Scripts name scratch directories by SLURM_JOB_ID, so every element has its own.
        env["SLURM_ARRAY_JOB_ID"] = str(job_number(array_parent(gang.job_id) or gang.job_id))
        env["SLURM_ARRAY_TASK_ID"] = str(index)
    return env


def array_index(job_id: JobId) -> int | None:
    """Return the index of an element of an array job, or None for any other job."""
    return int(job_id.rpartition(".")[2]) if array_parent(job_id) else None
