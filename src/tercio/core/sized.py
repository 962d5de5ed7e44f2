"""`devices: auto`: sizing chooses among the devices of this cluster and the job keeps the answer.

What finished jobs took beside their prediction corrects the next ones, and is said with them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Final

import msgspec

from tercio.core.records import Job, taken_choice
from tercio.errors import UserError
from tercio.model.ids import NodeName
from tercio.model.job import JobSpec, JobState
from tercio.model.node import Node, NodeSpec
from tercio.model.resources import DeviceRequest
from tercio.model.sizing import ModelSpec, Sized, SizedChoice
from tercio.sizing.calibration import Calibration
from tercio.sizing.catalogue import Catalogue, Gpu
from tercio.sizing.collectives import CollectiveFits
from tercio.sizing.config_files import shape_from_config
from tercio.sizing.devices import DeviceChoice, ModelBlock, choose_devices
from tercio.sizing.kernels import GemmTable

MOST_CHOICES: Final = 6
"""Alternatives kept: more only make the job slower to place."""
PRIOR_JOBS: Final = 2
"""A cluster's own ratio counts as if so many more jobs had run exactly as predicted."""


class SizingTables(msgspec.Struct, frozen=True, kw_only=True):
    """What sizing reads, loaded once by the caller."""

    catalogue: Catalogue
    calibration: Calibration
    kernels: GemmTable
    fits: CollectiveFits


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of device that this cluster has."""

    type: str
    card_bytes: int | None
    gpu: Gpu
    per_node: int
    total: int


def size_job(
    spec: JobSpec,
    nodes: Mapping[NodeName, Node],
    jobs: Iterable[Job],
    tables: SizingTables,
) -> JobSpec:
    """Return the spec with the devices, tasks, times and speeds that sizing chose.

    A spec that does not ask for `devices: auto` is returned as it is.

    Raises:
        UserError: the model is unknown, nothing of the cluster can be sized, or nothing holds it.
    """
    group = spec.groups[0]
    if not group.per_task.is_auto or spec.model is None:
        return spec
    parts = parts_of(nodes.values(), tables.catalogue)
    found = _choices(spec.model, spec.time.deadline_s, parts, tables)
    ratio, count = site_ratio(jobs, nodes, spec.model, tables.catalogue)
    sized = Sized(
        choices=_kept(found, parts, ratio),
        catalogue=tables.catalogue.date,
        calibration=tables.calibration.date,
        site_ratio=ratio,
        site_jobs=count,
    )
    return _applied(spec, sized, parts)


def parts_of(nodes: Iterable[Node], catalogue: Catalogue) -> dict[str, Part]:
    """Return the devices of a cluster that the catalogue knows, by catalogue name.

    Raises:
        UserError: there is none.
    """
    seen: dict[tuple[str, int], tuple[int, int]] = {}
    for node in nodes:
        for key, count in _devices(node.spec).items():
            total, most = seen.get(key, (0, 0))
            seen[key] = (total + count, max(most, count))
    sizes: dict[str, int] = {}
    for kind, _ in seen:
        sizes[kind] = sizes.get(kind, 0) + 1
    parts: dict[str, Part] = {}
    for (kind, card_bytes), (total, most) in seen.items():
        gpu = catalogued(catalogue, kind, card_bytes)
        if gpu is not None:
            parts[gpu.name] = Part(
                type=kind,
                card_bytes=card_bytes if sizes[kind] > 1 else None,
                gpu=gpu,
                per_node=most,
                total=total,
            )
    if not parts:
        kinds = ", ".join(dict.fromkeys(kind for kind, _ in seen)) or "none"
        raise UserError(
            f"devices: auto: no device of this cluster is in the catalogue (it has {kinds})",
            field="per_task.devices",
            hint="write the devices, such as CPU:2; `tercio size gpus` lists the catalogue",
        )
    return parts


def _devices(spec: NodeSpec) -> dict[tuple[str, int], int]:
    counts: dict[tuple[str, int], int] = {}
    for device in spec.devices:
        key = (device.type, device.card_bytes or device.memory_bytes)
        counts[key] = counts.get(key, 0) + 1
    return counts


def catalogued(catalogue: Catalogue, kind: str, card_bytes: int) -> Gpu | None:
    """Return the catalogue's part for a device type, with the nearest card size; None if none."""
    try:
        known = catalogue.gpu(kind)
    except UserError:
        return None
    family = f"{known.name.split('-')[0]}-"
    alike = [known, *(gpu for name, gpu in catalogue.gpus.items() if name.startswith(family))]
    # A part that can be sized has the rates that the predictors read.
    usable = [gpu for gpu in alike if gpu.memory_bytes_per_s and (gpu.bf16_flops or gpu.fp16_flops)]
    if not usable or not card_bytes:
        return usable[0] if usable else None
    return min(usable, key=lambda gpu: abs(gpu.memory_gb * 1e9 - card_bytes))


def site_ratio(
    jobs: Iterable[Job], nodes: Mapping[NodeName, Node], model: ModelSpec, catalogue: Catalogue
) -> tuple[float, int]:
    """Return run time over prediction of finished jobs of the same method, and their number.

    The median of the logarithms, shrunk towards 1 by `PRIOR_JOBS`. Jobs of the same model count
    alone where there are any.
    """
    logs: list[tuple[bool, float]] = []
    for job in jobs:
        before = job.spec.model
        if before is None or before.method != model.method or job.spec.sized is None:
            continue
        taken = taken_choice(job, nodes)
        # Only a job that ran through in one attempt says how long the work was.
        if taken is None or not taken.expected_s or job.attempt != 1 or job.ended_s is None:
            continue
        if job.started_s is None or job.state is not JobState.SUCCEEDED:
            continue
        run_s = job.ended_s - job.started_s
        # What the site's probes say by now is in the next prediction already.
        now = catalogue.speed_ratio(before.name or "model", before.method, taken.part)
        predicted_s = taken.expected_s / job.spec.sized.site_ratio * taken.probe_ratio / now
        if run_s > 0:
            is_same = (before.name, before.config) == (model.name, model.config)
            logs.append((is_same, math.log(run_s / predicted_s)))
    rows = [value for is_same, value in logs if is_same] or [value for _, value in logs]
    if not rows:
        return 1.0, 0
    return math.exp(median(rows) * len(rows) / (len(rows) + PRIOR_JOBS)), len(rows)


def _choices(
    model: ModelSpec, deadline_s: float | None, parts: dict[str, Part], tables: SizingTables
) -> tuple[DeviceChoice, ...]:
    shape = (
        tables.catalogue.model(model.name)
        if model.config is None
        else shape_from_config(json.loads(model.config), name=model.name or "model")
    )
    most = max(part.total for part in parts.values())
    if model.devices_max is not None:
        most = min(most, model.devices_max)
    counts = [1 << step for step in range(most.bit_length()) if 1 << step <= most]
    found = choose_devices(
        tables.catalogue,
        ModelBlock(
            shape=shape,
            method=model.method,
            tokens=model.tokens,
            seq=model.seq,
            batch_tokens=model.batch_tokens,
            micro_batch=model.micro_batch,
            deadline_s=deadline_s,
        ),
        [part.gpu for part in parts.values()],
        counts=counts,
        kernels=tables.kernels,
        fits=tables.fits,
        calibration=tables.calibration,
    )
    return tuple(row for row in found if row.gpus <= parts[row.gpu].total)


def _kept(
    found: Sequence[DeviceChoice], parts: dict[str, Part], ratio: float
) -> tuple[SizedChoice, ...]:
    """Return the best, and the others that the scheduler may take in its place.

    A job has one number of tasks, so alternatives share it; a later one of the same type must
    ask for less, or it would never be free when the earlier is not.
    """
    kept: list[SizedChoice] = []
    least: dict[str, int] = {}
    for row in found:
        part = parts[row.gpu]
        per_task = min(row.gpus, part.per_node)
        tasks = row.gpus // per_task
        if row.gpus % per_task or (kept and tasks != kept[0].tasks):
            continue
        if per_task >= least.get(row.gpu, per_task + 1) or len(kept) == MOST_CHOICES:
            continue
        least[row.gpu] = per_task
        name = part.type if part.card_bytes is None else f"{part.type}-{part.gpu.memory_gb:g}GB"
        kept.append(
            SizedChoice(
                devices=f"{name}:{per_task}",
                part=row.gpu,
                type=part.type,
                per_task=per_task,
                tasks=tasks,
                expected_s=_scaled(row.expected_s, ratio),
                low_s=_scaled(row.expected_low_s, ratio),
                high_s=_scaled(row.expected_high_s, ratio),
                cost_usd=_scaled(row.cost_usd, ratio),
                why=row.why,
                tokens_per_s=row.tokens_per_s / ratio,
                layout=row.layout,
                probe_ratio=row.probe_ratio,
            )
        )
    if not kept:
        sizes = ", ".join(f"{part.total} {part.type}" for part in parts.values())
        raise UserError(
            f"devices: auto: no layout of the model fits this cluster ({sizes})",
            code="never_fits",
            field="model",
            hint="try method: qlora, a shorter seq, or write the devices yourself",
        )
    return tuple(kept)


def _scaled(value: float | None, ratio: float) -> float | None:
    return None if value is None else value * ratio


def _applied(spec: JobSpec, sized: Sized, parts: dict[str, Part]) -> JobSpec:
    group, first = spec.groups[0], sized.choices[0]
    requests = tuple(
        DeviceRequest(
            type=choice.type, count=choice.per_task, card_bytes=parts[choice.part].card_bytes
        )
        for choice in sized.choices
    )
    per_task = msgspec.structs.replace(group.per_task, devices=requests, is_auto=False)
    time = spec.time
    if time.expected_s is None and first.expected_s is not None:
        time = msgspec.structs.replace(time, expected_s=first.expected_s)
    return msgspec.structs.replace(
        spec,
        groups=(msgspec.structs.replace(group, tasks=first.tasks, per_task=per_task),),
        time=time,
        speed=spec.speed or _speeds(sized),
        sized=sized,
    )


def _speeds(sized: Sized) -> dict[str, float]:
    """Return the speed of each type beside the first choice, where the choice is as large."""
    first = sized.choices[0]
    if first.expected_s is None:
        return {}
    speeds: dict[str, float] = {}
    for choice in sized.choices:
        if choice.expected_s:
            speeds.setdefault(choice.type, round(first.expected_s / choice.expected_s, 4))
    return speeds
