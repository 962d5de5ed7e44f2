"""Native jobs to files of other tools, and to tidy native YAML; each says what it cannot keep."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import yaml

from tercio.errors import UserError
from tercio.formats.document import Json
from tercio.formats.foreign.draft import JobObject, Loss, Report
from tercio.formats.foreign.images import image_for_pyxis, mount_text
from tercio.model.job import Framework, JobSpec, Repair, RetrySpec, TaskGroup
from tercio.model.resources import DeviceRequest
from tercio.model.units import format_duration, format_instant

TARGETS: Final = ("native", "sbatch", "sky")


class Written(NamedTuple):
    """A file and what it does not keep."""

    text: str
    losses: tuple[Loss, ...]


class _Dumper(yaml.SafeDumper):
    """Scripts as blocks, keys in their order."""


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _block)


def _dump(value: Json) -> str:
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True)
    return text


def write_native(jobs: Sequence[JobObject]) -> str:
    """Return jobs as one native file; a script's trailing blanks would hide its lines, so go."""
    order = ("name", "queue", "tasks", "per_task", "framework", "time")
    documents = []
    for job in jobs:
        keys = [key for key in order if key in job]
        keys += [key for key in job if key not in order and key != "run"]
        value: dict[str, Json] = {key: job[key] for key in [*keys, "run"] if key in job}
        run = value.get("run")
        if isinstance(run, str):
            value["run"] = "\n".join(line.rstrip() for line in run.splitlines()) + (
                "\n" if "\n" in run else ""
            )
        documents.append(_dump(value))
    return "---\n".join(documents)


def write_sbatch(spec: JobSpec) -> Written:
    """Return a job as a batch script; its tasks are started by srun, one on each node."""
    report = Report()
    group = _one_group(spec, "sbatch")
    options: list[tuple[str, str]] = [
        ("job-name", spec.name),
        ("nodes", str(group.tasks)),
        ("ntasks-per-node", "1"),
    ]
    request = _first_device(group, report)
    if request is not None and request.count:
        name = f"{request.type.lower()}:" if request.type else ""
        options.append(("gpus-per-node", f"{name}{request.count}"))
    per_task = group.per_task
    if per_task.cpus_milli is not None:
        options.append(("cpus-per-task", str(-(-per_task.cpus_milli // 1000))))
    if per_task.memory_bytes is not None:
        options.append(("mem", f"{-(-per_task.memory_bytes // 1024**2)}M"))
    if group.exclusive:
        options.append(("exclusive", ""))
    options += _sbatch_times(spec)
    options += _sbatch_rest(spec, report)
    _report_rest(spec, group, report, _KEPT_BY_SBATCH)
    lines = [f"#SBATCH --{name}{'=' if value else ''}{value}" for name, value in options]
    body = _sbatch_body(spec, group, request)
    return Written("\n".join(["#!/bin/bash", *lines, "", body]) + "\n", tuple(report.losses))


def _sbatch_times(spec: JobSpec) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    if spec.time.limit_s is not None:
        minutes = max(1, -(-round(spec.time.limit_s) // 60))
        days, rest = divmod(minutes, 1440)
        clock = f"{rest // 60:02d}:{rest % 60:02d}:00"
        found.append(("time", f"{days}-{clock}" if days else clock))
    for name, at_s in (("begin", spec.time.earliest_s), ("deadline", spec.time.deadline_s)):
        if at_s is not None:
            found.append((name, format_instant(at_s).replace(" UTC", "").replace(" ", "T")[:19]))
    return found


def _sbatch_rest(spec: JobSpec, report: Report) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    if spec.array is not None:
        pieces = []
        for row in spec.array.ranges:
            last = row.start + (len(range(row.start, row.stop, row.step)) - 1) * row.step
            step = f":{row.step}" if row.step > 1 else ""
            pieces.append(str(row.start) if last == row.start else f"{row.start}-{last}{step}")
        limit = f"%{spec.array.concurrency}" if spec.array.concurrency else ""
        found.append(("array", ",".join(pieces) + limit))
    if spec.checkpoint.signal is not None:
        name = spec.checkpoint.signal.removeprefix("SIG")
        found.append(("signal", f"{name}@{max(1, round(spec.checkpoint.grace_s))}"))
    if spec.nodes is not None and spec.nodes.exclude:
        found.append(("exclude", ",".join(spec.nodes.exclude)))
    found.append(("requeue" if spec.retry.on else "no-requeue", ""))
    for label, value in spec.labels.items():
        if label.startswith("slurm-") and label.removeprefix("slurm-") in _LABELS:
            found.append((label.removeprefix("slurm-"), value))
        else:
            report.dropped(f"labels.{label}", value, "Slurm has a comment only")
    if spec.image is not None:
        found.append(("container-image", image_for_pyxis(spec.image)))
        if spec.mounts:
            found.append(("container-mounts", ",".join(mount_text(each) for each in spec.mounts)))
        report.changed("image", spec.image, "it needs the Pyxis plugin on the cluster")
    return found


_LABELS: Final = ("partition", "account", "qos", "comment", "wckey")


def _sbatch_body(spec: JobSpec, group: TaskGroup, request: DeviceRequest | None) -> str:
    lines = [f"export {name}={shlex.quote(value)}" for name, value in spec.env.items()]
    if spec.workdir is not None:
        lines.append('cd "$SLURM_SUBMIT_DIR"' if spec.workdir == "." else f"cd {spec.workdir}")
    if spec.setup is not None:
        lines.append(f"srun bash -c {shlex.quote(spec.setup)}")
    run = spec.run.rstrip("\n")
    if spec.framework in (Framework.TORCH, Framework.TORCHRUN):
        lines.append(
            'export MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"'
        )
        lines.append("export MASTER_PORT=$(( 20000 + SLURM_JOB_ID % 20000 ))")
    if spec.framework is Framework.TORCH:
        run = f"export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID\n{run}"
    elif spec.framework is Framework.TORCHRUN:
        count = request.count if request is not None else 1
        launcher = (
            f"torchrun --nnodes={group.tasks} --nproc-per-node={count or 1} "
            '--node-rank="$SLURM_NODEID" --master-addr="$MASTER_ADDR" '
            '--master-port="$MASTER_PORT" --no-python bash -c'
        )
        run = f"{launcher} {shlex.quote(run)}"
    lines.append(f"srun bash -c {shlex.quote(run)}")
    return "\n".join(lines)


def write_sky(spec: JobSpec) -> Written:
    """Return a job as a SkyPilot task."""
    report = Report()
    group = _one_group(spec, "sky")
    resources: dict[str, Json] = {}
    requests = [row for row in group.per_task.devices if row.count]
    names = [f"{row.type or 'any'}:{row.count}" for row in requests]
    if any(row.type is None for row in requests):
        report.dropped("per_task.devices", ", ".join(names), "SkyPilot needs a device type")
    elif names:
        resources["accelerators"] = names[0] if len(names) == 1 else list(names)
    if group.per_task.cpus_milli is not None:
        resources["cpus"] = f"{-(-group.per_task.cpus_milli // 1000)}+"
    if group.per_task.memory_bytes is not None:
        resources["memory"] = f"{-(-group.per_task.memory_bytes // 1024**3)}+"
    if spec.image is not None:
        resources["image_id"] = f"docker:{spec.image}"
    if spec.labels:
        resources["labels"] = dict(spec.labels)
    if spec.priority:
        resources["priority"] = spec.priority
    if spec.retry != RetrySpec():
        resources["job_recovery"] = {
            "max_restarts_on_errors": spec.retry.max if "failed" in spec.retry.on else 0
        }
    task: dict[str, Json] = {"name": spec.name}
    if group.tasks > 1:
        task["num_nodes"] = group.tasks
    for key, value in (
        ("workdir", spec.workdir), ("resources", resources), ("envs", dict(spec.env)),
        ("secrets", dict.fromkeys(spec.secrets)), ("setup", spec.setup), ("run", spec.run),
    ):  # fmt: skip
        if value:
            task[key] = value
    if spec.framework not in (Framework.PLAIN,):
        why = "set the ranks inside run, from SKYPILOT_NODE_RANK and SKYPILOT_NODE_IPS"
        report.changed("framework", spec.framework.value, why)
    _report_rest(spec, group, report, _KEPT_BY_SKY)
    return Written(_dump(task), tuple(report.losses))


WRITERS: Final[dict[str, Callable[[JobSpec], Written]]] = {
    "sbatch": write_sbatch,
    "sky": write_sky,
}
"""Formats that hold one job a file, beside the native one."""

_KEPT_BY_SBATCH: Final = frozenset(
    {"time.limit", "time.earliest", "time.deadline", "array", "exclusive", "labels", "image",
     "mounts", "signal", "exclude", "framework.torch", "retry"}
)  # fmt: skip
_KEPT_BY_SKY: Final = frozenset(
    {"priority", "labels", "image", "secrets", "framework.other", "retry", "framework.torch"}
)


def _report_rest(spec: JobSpec, group: TaskGroup, report: Report, kept: frozenset[str]) -> None:
    """Report every field that is set and that the format does not keep."""
    time, checkpoint, nodes = spec.time, spec.checkpoint, spec.nodes
    is_torch = spec.framework in (Framework.PLAIN, Framework.TORCH, Framework.TORCHRUN)
    rows: tuple[tuple[str, str, object, str], ...] = (
        ("queue", "queue", spec.queue, "queues are Tercio's"),
        ("priority", "priority", spec.priority or None, "it counts inside one queue only"),
        ("preemptible", "preemptible", spec.preemptible, "the partition says"),
        ("tasks", "tasks", group.tasks_max, "the gang has its least size"),
        ("topology", "topology", group.topology or spec.topology, "write it for the other tool"),
        ("exclusive", "exclusive", group.exclusive or None, "it has no counterpart"),
        ("match", "nodes.match", nodes.match if nodes else None, "write a constraint"),
        ("exclude", "nodes.exclude", nodes.exclude if nodes else None, "it has no counterpart"),
        ("time.limit", "time.limit", _span(time.limit_s), "it has no counterpart"),
        ("time.expected", "time.expected", _span(time.expected_s), "it has no counterpart"),
        ("time.deadline", "time.deadline", time.deadline_s, "it has no counterpart"),
        ("time.earliest", "time.earliest", time.earliest_s, "it has no counterpart"),
        ("time.flexible", "time.flexible", _span(time.flexible_s), "it has no counterpart"),
        ("secrets", "secrets", spec.secrets, "export them before you submit"),
        ("outputs", "outputs", spec.outputs, "write to a directory of your own"),
        ("signal", "checkpoint.signal", checkpoint.signal, "it has no counterpart"),
        ("path", "checkpoint.path", checkpoint.path, "set TERCIO_CHECKPOINT_DIR yourself"),
        ("repair", "repair", "task" if spec.repair is Repair.TASK else None, "all start again"),
        ("depends_on", "depends_on", [d.job for d in spec.depends_on], "ids are Tercio's"),
        ("array", "array", spec.array and spec.array.size, "write one file for each element"),
        ("reservation", "reservation", spec.reservation, "reservations are Tercio's"),
        ("sites", "sites", spec.sites, "sites are Tercio's"),
        ("speed", "speed", spec.speed or None, "it has no counterpart"),
        ("goodput", "speed", [row.type for row in spec.goodput], "it has no counterpart"),
        ("notify", "notify", [row.url for row in spec.notify], "it has no counterpart"),
        ("labels", "labels", spec.labels or None, "it has no counterpart"),
        ("image", "image", spec.image, "it has no counterpart"),
        ("mounts", "mounts", [each.source for each in spec.mounts], "mount it on the nodes"),
        ("shm", "per_task.shm", group.per_task.shm_bytes, "it is the node's own"),
        (
            "framework.torch" if is_torch else "framework.other",
            "framework",
            None if spec.framework is Framework.PLAIN else spec.framework.value,
            "start it inside run",
        ),
    )
    for key, field, value, why in rows:
        if key not in kept and value not in (None, (), []):
            report.dropped(field, value, why)


def _span(seconds: float | None) -> str | None:
    return None if seconds is None else format_duration(seconds)


def _one_group(spec: JobSpec, target: str) -> TaskGroup:
    group = spec.groups[0]
    if len(spec.groups) > 1 or group.subgroups:
        raise UserError(
            f"{spec.name}: a job of several groups has no form in {target}",
            code="unsupported",
            hint="write one job for each group",
            field="groups",
        )
    return group


def _first_device(group: TaskGroup, report: Report) -> DeviceRequest | None:
    requests = group.per_task.devices
    if len(requests) > 1:
        why = "Slurm takes one type: the first is written"
        report.changed("per_task.devices", f"{len(requests)} alternatives", why)
    first = requests[0]
    if first.is_shared:
        report.dropped(
            "per_task.devices", "a share of a device", "write a whole device, or a MIG type"
        )
        return None
    if first.card_bytes is not None:
        report.dropped("per_task.devices", f"{first.card_bytes // 10**9}GB", "write a constraint")
    return None if first.is_none or first.type == "CPU" else first
