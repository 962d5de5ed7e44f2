"""`devices: auto`: the ranked device requests for a model, in the grammar of the job file.

A scheduler may take any of the alternatives by what is free; each says why it stands where it does.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tercio.errors import UserError
from tercio.model.sizing import Layout
from tercio.sizing.architecture import ModelShape
from tercio.sizing.calibration import Calibration
from tercio.sizing.catalogue import Catalogue, Gpu
from tercio.sizing.collectives import CollectiveFits
from tercio.sizing.finetune import FinetuneAnswer, FinetuneGoal, answer_finetune
from tercio.sizing.kernels import GemmTable
from tercio.sizing.search import TrainGoal, search_train
from tercio.sizing.train_plan import TrainPlan

# Devices of one node: a tray of an NVL72 rack holds four, other boards eight.
TRAY_DEVICES = 4
BOARD_DEVICES = 8


class ModelBlock(msgspec.Struct, frozen=True, kw_only=True):
    """The `model:` block of a job: what is trained and how much of it.

    `method` is pretrain, full, lora or qlora. `deadline_s` is the wall time that is left, if any.
    """

    shape: ModelShape
    method: str = "lora"
    tokens: float | None = None
    seq: int = 4096
    batch_tokens: float = 4_194_304.0
    micro_batch: float = 1.0
    deadline_s: float | None = None


class DeviceChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One alternative: `tasks` gang members of `devices` each.

    `expected_s` and its range are None where the block states no tokens.
    """

    devices: str
    tasks: int
    gpu: str
    gpus: int
    expected_s: float | None
    expected_low_s: float | None
    expected_high_s: float | None
    cost_usd: float | None
    tokens_per_s: float
    layout: Layout
    probe_ratio: float
    why: str


def type_name(catalogue: Catalogue, gpu: Gpu) -> str:
    """The type as the job file writes it: with the card size where the family has several."""
    family = gpu.name.split("-")[0]
    sizes = {
        other.memory_gb for name, other in catalogue.gpus.items() if name.split("-")[0] == family
    }
    return f"{family}-{gpu.memory_gb:g}GB" if len(sizes) > 1 else family


def _request(catalogue: Catalogue, gpu: Gpu, gpus: int) -> tuple[str, int]:
    """(devices per task, tasks) of a device count on whole nodes."""
    node = TRAY_DEVICES if gpu.domain > BOARD_DEVICES else BOARD_DEVICES
    per_task = min(gpus, node)
    return f"{type_name(catalogue, gpu)}:{per_task}", max(1, gpus // per_task)


def choose_devices(
    catalogue: Catalogue,
    block: ModelBlock,
    gpus: Sequence[Gpu],
    *,
    counts: Sequence[int],
    kernels: GemmTable,
    fits: CollectiveFits,
    calibration: Calibration,
) -> tuple[DeviceChoice, ...]:
    """Alternatives in order of preference. Raises UserError `never_fits` when nothing holds it.

    Only device counts up to the largest of `counts` are offered.
    """
    if block.method == "pretrain":
        return _pretrain(
            catalogue,
            block,
            gpus,
            counts=counts,
            kernels=kernels,
            fits=fits,
            calibration=calibration,
        )
    goal = FinetuneGoal(
        shape=block.shape,
        method=block.method,
        gpus=tuple(gpus),
        seq=block.seq,
        micro_batch=block.micro_batch,
        tokens=block.tokens,
    )
    answers = answer_finetune(catalogue, goal, kernels=kernels, fits=fits, model=calibration.train)
    found = [
        _finetune_choice(catalogue, block, answer)
        for answer in answers
        if answer.fit.gpus <= max(counts)
    ]
    if not found:
        raise UserError(
            f"{block.method} of {block.shape.name} needs more than {max(counts)} devices",
            code="never_fits",
            field="model",
            hint=f"the smallest is {answers[0].fit.gpus} x {answers[0].fit.gpu}",
        )
    return tuple(found)


def _finetune_choice(
    catalogue: Catalogue, block: ModelBlock, answer: FinetuneAnswer
) -> DeviceChoice:
    fit, tokens = answer.fit, block.tokens
    devices, tasks = _request(catalogue, catalogue.gpus[fit.gpu], fit.gpus)
    return DeviceChoice(
        devices=devices,
        tasks=tasks,
        gpu=fit.gpu,
        gpus=fit.gpus,
        expected_s=None if tokens is None else tokens / answer.tokens_per_s,
        expected_low_s=None if tokens is None else tokens / answer.tokens_per_s_high,
        expected_high_s=None if tokens is None else tokens / answer.tokens_per_s_low,
        cost_usd=answer.cost_usd,
        tokens_per_s=answer.tokens_per_s,
        probe_ratio=catalogue.speed_ratio(block.shape.name, block.method, fit.gpu),
        layout=Layout(
            dp=fit.gpus,
            sharding="zero3" if answer.shard_group > 1 else "none",
            shard_group=answer.shard_group,
            micro_batch=block.micro_batch,
            recompute=fit.recompute,
        ),
        why=f"{fit.needed_bytes / 1024**3:.0f} of {fit.usable_bytes / 1024**3:.0f} GiB a device, "
        f"{answer.tokens_per_s:,.0f} tokens/s",
    )


def _plan_layout(plan: TrainPlan) -> Layout:
    return Layout(
        tp=plan.tp,
        pp=plan.pp,
        cp=plan.cp,
        ep=plan.ep,
        dp=plan.dp,
        sharding=plan.sharding,
        shard_group=plan.dp,
        micro_batch=plan.micro_batch,
        microbatches=plan.microbatches,
        virtual_stages=plan.virtual_stages,
        precision=plan.precision,
        recompute=plan.recompute,
    )


def _pretrain(
    catalogue: Catalogue,
    block: ModelBlock,
    gpus: Sequence[Gpu],
    *,
    counts: Sequence[int],
    kernels: GemmTable,
    fits: CollectiveFits,
    calibration: Calibration,
) -> tuple[DeviceChoice, ...]:
    if block.tokens is None:
        raise UserError(
            "pre-training needs the number of tokens", field="model.tokens", hint="tokens: 100B"
        )
    result = search_train(
        catalogue,
        TrainGoal(
            shape=block.shape,
            tokens=block.tokens,
            seq=block.seq,
            batch_tokens=block.batch_tokens,
            gpus=tuple(gpus),
            counts=tuple(counts),
            deadline_s=block.deadline_s,
        ),
        kernels=kernels,
        fits=fits,
        model=calibration.train,
        calibration_date=calibration.date,
    )
    found = []
    for candidate in result.candidates:
        plan = candidate.plan
        devices, tasks = _request(catalogue, catalogue.gpus[candidate.gpu], plan.gpus)
        found.append(
            DeviceChoice(
                devices=devices,
                tasks=tasks,
                gpu=candidate.gpu,
                gpus=plan.gpus,
                expected_s=candidate.days * 86_400.0,
                expected_low_s=candidate.days_low * 86_400.0,
                expected_high_s=candidate.days_high * 86_400.0,
                cost_usd=candidate.cost_usd,
                tokens_per_s=candidate.tokens_per_s,
                probe_ratio=catalogue.speed_ratio(block.shape.name, block.method, candidate.gpu),
                layout=_plan_layout(plan),
                why=f"{candidate.memory_total_bytes / 1024**3:.0f} of "
                f"{candidate.usable_bytes / 1024**3:.0f} GiB a device, "
                f"{candidate.tokens_per_s:,.0f} tokens/s, {candidate.binds} binds",
            )
        )
    return tuple(found)
