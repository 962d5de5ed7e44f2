"""What a job file may say but a site cannot do yet: refused with the field, never ignored.

Each feature has a name here. A site passes the set it supports; work on a feature ends by
adding its name to that set.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tercio.errors import UserError
from tercio.model.job import Framework, JobSpec, Repair, TaskGroup
from tercio.model.resources import DeviceRequest

FEATURES: Final = {
    "array": "run it once per index as separate jobs",
    "checkpoint.every": "let the program decide when it saves",
    "deadline": "remove time.deadline",
    "depends_on": "submit the job when the other one has ended",
    "devices.alternatives": "write one device type",
    "devices.auto": "write the devices, such as H100:8",
    "devices.elastic": "write an exact count of devices",
    "devices.mig": "write whole devices or a share such as H100:0.5",
    "devices.share": "write whole devices",
    "exclusive": "ask for all devices of a node",
    "framework.dask": "start the Dask cluster inside run",
    "framework.jax": "set the coordinator inside run",
    "framework.mpi": "run mpirun inside one task",
    "framework.ray": "start the Ray cluster inside run",
    "framework.tensorflow": "set TF_CONFIG inside run",
    "goodput": "write relative speeds by type: speed: {H100: 1.0}",
    "image": "install docker, podman or apptainer on the nodes, or remove image",
    "nodes.match": "list the nodes not to use under nodes.exclude",
    "notify": "watch with `tercio wait`",
    "outputs": "write to a directory of your own",
    "repair.task": "write repair: gang",
    "reservation": "remove reservation",
    "setup": "move its lines to the start of run",
    "shm": "remove per_task.shm",
    "speed": "write alternatives in order of preference in per_task.devices",
    "subgroups": "write flat groups with a topology each",
    "tasks.elastic": "write an exact number of tasks",
    "topology.leader": "write same for the whole job",
    "topology.prefer": "write same to require it, or remove it",
    "topology.same": "remove it",
    "topology.slice": "write a group for each slice",
    "topology.spread": "remove it, or exclude nodes",
}
"""Every feature that can be refused, with what to write instead."""

_Wanted = tuple[str, str, str]


def unsupported(spec: JobSpec, supported: frozenset[str]) -> list[UserError]:
    """Return one error for each feature the job uses that is not in `supported`.

    `supported` holds names of `FEATURES`. Errors come in the order of the job file's keys.
    """
    return [
        UserError(
            f"{field}: {value} is not supported by this site yet",
            code="unsupported",
            hint=FEATURES[feature],
            field=field,
        )
        for feature, field, value in _wanted(spec)
        if feature not in supported
    ]


def _wanted(spec: JobSpec) -> Iterator[_Wanted]:
    """Yield feature, field and value of everything that a site may lack."""
    is_flat = len(spec.groups) == 1 and not spec.groups[0].name
    for index, group in enumerate(spec.groups):
        yield from _of_group(group, "" if is_flat else f"groups[{index}].")
    if spec.topology is not None:
        for level in ("same", "prefer", "spread"):
            value = getattr(spec.topology, level)
            if value is not None:
                yield f"topology.{level}", f"topology.{level}", f"'{value}'"
    for feature, field, value in (
        ("nodes.match", "nodes.match", spec.nodes.match if spec.nodes else None),
        ("deadline", "time.deadline", spec.time.deadline_s),
        ("outputs", "outputs", spec.outputs),
        ("image", "image", spec.image),
        ("checkpoint.every", "checkpoint.every", spec.checkpoint.every_s),
        ("reservation", "reservation", spec.reservation),
    ):
        if value is not None:
            yield feature, field, f"'{value}'"
    if spec.setup is not None:
        yield "setup", "setup", "a setup script"
    if spec.framework not in (Framework.PLAIN, Framework.TORCH, Framework.TORCHRUN):
        yield f"framework.{spec.framework.value}", "framework", f"'{spec.framework.value}'"
    if spec.repair is Repair.TASK:
        yield "repair.task", "repair", "'task'"
    if spec.depends_on:
        yield "depends_on", "depends_on", f"waiting for '{spec.depends_on[0].job}'"
    if spec.array is not None:
        yield "array", "array", f"an array of {spec.array.size}"
    if spec.speed:
        yield "speed", "speed", f"a speed of '{next(iter(spec.speed))}'"
    for profile in spec.goodput:
        yield "goodput", f"speed.{profile.type}", "a goodput profile"
    if spec.notify:
        yield "notify", "notify", f"calling '{spec.notify[0].url}'"


def _of_group(group: TaskGroup, prefix: str) -> Iterator[_Wanted]:
    if group.subgroups:
        yield "subgroups", f"{prefix}subgroups", f"a gang of {len(group.subgroups)} gangs"
        for index, inner in enumerate(group.subgroups):
            yield from _of_group(inner, f"{prefix}subgroups[{index}].")
    if group.tasks_max is not None:
        yield "tasks.elastic", f"{prefix}tasks", f"'{group.tasks}..{group.tasks_max}'"
    if group.per_task.is_auto:
        yield "devices.auto", f"{prefix}per_task.devices", "'auto'"
    requests = group.per_task.devices
    if len(requests) > 1:
        yield "devices.alternatives", f"{prefix}per_task.devices", f"{len(requests)} alternatives"
    for request in requests:
        yield from _of_devices(request, f"{prefix}per_task.devices")
    if group.per_task.shm_bytes is not None:
        yield "shm", f"{prefix}per_task.shm", "a size of /dev/shm"
    topology = group.topology
    if topology is not None:
        for level in ("same", "prefer", "spread", "leader"):
            value = getattr(topology, level)
            if value is not None:
                yield f"topology.{level}", f"{prefix}topology.{level}", f"'{value}'"
        if topology.slice is not None:
            value = f"{topology.slice.tasks} tasks in one {topology.slice.same}"
            yield "topology.slice", f"{prefix}topology.slice", value
    if group.exclusive:
        yield "exclusive", f"{prefix}exclusive", "a whole node per task"


def _of_devices(request: DeviceRequest, field: str) -> Iterator[_Wanted]:
    if request.count_max is not None:
        yield "devices.elastic", field, f"'{request.count}..{request.count_max}'"
    if request.mig_profile is not None:
        yield "devices.mig", field, f"'{request.mig_profile}'"
    elif request.is_shared:
        yield "devices.share", field, "a share of a device"
