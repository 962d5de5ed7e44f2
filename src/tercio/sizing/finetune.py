"""Fine-tuning and fit questions: does it fit, on how few devices, how fast.

Memory follows `memory.py` with the torchtune profile (compiled blocks, chunked loss); speed follows
the training predictor with the LoRA arithmetic (no weight gradients).
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from tercio.errors import UserError
from tercio.sizing import architecture as arch
from tercio.sizing import cost
from tercio.sizing.architecture import ModelShape
from tercio.sizing.calibrate_train import TrainModel, nominal_work, tabulate
from tercio.sizing.catalogue import Catalogue, Gpu
from tercio.sizing.collectives import CollectiveFits
from tercio.sizing.cost import Price
from tercio.sizing.kernels import GemmTable, gemm_basis, range_half_width
from tercio.sizing.memory import MemoryCase, MemoryParts, memory_parts, runtime_bytes
from tercio.sizing.tables_train import network_share, scale_up_domain
from tercio.sizing.train_plan import TrainCase, TrainPlan

METHODS = ("full", "lora", "qlora")
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

# Reading 4-bit weights costs 5 to 30 % of the time of a step; the middle is used.
DEQUANTISE_RATIO = 1.15


class FitCase(msgspec.Struct, frozen=True, kw_only=True):
    """One question: this model, this way, on these devices.

    `shard_group` is how many devices split the states; 0 stands for all.
    """

    shape: ModelShape
    method: str
    gpu: Gpu
    gpus: int
    seq: int
    micro_batch: float = 1.0
    lora_rank: int = 16
    optimizer: str = ""
    shard_group: int = 0

    @property
    def shards(self) -> int:
        """Devices that split the states: all of them unless a smaller group is asked for."""
        return self.shard_group or self.gpus


class FitAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict with its reasons. `smallest_gpus` is None when no count up to 1,024 fits."""

    gpu: str
    gpus: int
    fits: bool
    recompute: str
    memory: MemoryParts
    needed_bytes: float
    usable_bytes: float
    smallest_gpus: int | None
    change: str


def memory_of(case: FitCase, recompute: str) -> MemoryParts:
    """Memory of the question under one recompute mode, with states sharded over the devices."""
    many = case.shards > 1
    method = "inference" if case.method == "inference" else case.method
    optimizer = case.optimizer or ("adamw" if method in ("full", "pretrain") else "adamw_bf16")
    split = case.shards
    parts = memory_parts(
        MemoryCase(
            shape=case.shape,
            method=method,
            profile="torchtune",
            weight_format="nf4-dq" if method == "qlora" else "bf16",
            optimizer=optimizer,
            seq=float(case.seq),
            micro_batch=case.micro_batch,
            shards=split,
            expert_shards=split,
            sharding="zero3" if many and method != "inference" else "none",
            recompute=recompute,
            lora_rank=case.lora_rank,
            tp=case.gpus if method == "inference" else 1,
        )
    )
    return parts


def answer_once(case: FitCase) -> tuple[bool, str, MemoryParts]:
    """(fits, recompute, memory) with the least recompute that fits, or with the last mode."""
    room = case.gpu.usable_bytes - runtime_bytes(case.gpus)
    modes = ("none",) if case.method == "inference" else ("none", "selective", "full")
    for recompute in modes:
        parts = memory_of(case, recompute)
        if parts.total_bytes <= room:
            return True, recompute, parts
    return False, modes[-1], memory_of(case, modes[-1])


def smallest_count(case: FitCase) -> int | None:
    """The fewest devices of the part on which the question fits."""
    for count in COUNTS:
        if case.method == "inference" and case.shape.heads % count:
            continue
        if answer_once(msgspec.structs.replace(case, gpus=count, shard_group=0))[0]:
            return count
    return None


def answer_fit(case: FitCase) -> FitAnswer:
    """Would it fit, and what is the smallest that does."""
    if case.gpus < 1 or case.seq < 1 or case.micro_batch <= 0:
        raise UserError("gpus, seq and micro-batch must be positive", field="gpus")
    verdict, recompute, parts = answer_once(case)
    smallest = smallest_count(case)
    needed = parts.total_bytes + runtime_bytes(case.gpus)
    return FitAnswer(
        gpu=case.gpu.name,
        gpus=case.gpus,
        fits=verdict,
        recompute=recompute,
        memory=parts,
        needed_bytes=needed,
        usable_bytes=case.gpu.usable_bytes,
        smallest_gpus=smallest,
        change=_advice(case, verdict, smallest, parts),
    )


def _advice(case: FitCase, verdict: bool, smallest: int | None, parts: MemoryParts) -> str:
    if verdict:
        return "fits" if smallest == case.gpus else f"fits; {smallest} x {case.gpu.name} would do"
    largest = max(
        (name for name in MemoryParts.__struct_fields__),
        key=lambda name: float(getattr(parts, name)),
    )
    words = largest.removesuffix("_bytes")
    if smallest is not None:
        return f"{words} take most; it fits on {smallest} x {case.gpu.name}"
    lighter = "; LoRA or QLoRA needs far less" if case.method == "full" else ""
    return f"{words} take most; it fits on no count up to {COUNTS[-1]}{lighter}"


class FinetuneAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One way to fine-tune, with its speed. Ranges are 80 %.

    `shard_group` is how many devices split the states among them.
    """

    fit: FitAnswer
    shard_group: int
    method: str
    tokens_per_s: float
    tokens_per_s_low: float
    tokens_per_s_high: float
    hours: float | None
    cost_usd: float | None
    price: Price | None
    basis: str


class FinetuneGoal(msgspec.Struct, frozen=True, kw_only=True):
    """What to fine-tune and on what. `tokens` is None where only speed is asked for."""

    shape: ModelShape
    method: str
    gpus: tuple[Gpu, ...]
    seq: int
    micro_batch: float = 1.0
    lora_rank: int = 16
    tokens: float | None = None


def _finetune_cases(goal: FinetuneGoal) -> list[FitCase]:
    """For each part the smallest count that fits, and a node of eight."""
    cases: list[FitCase] = []
    for gpu in goal.gpus:
        base = FitCase(
            shape=goal.shape,
            method=goal.method,
            gpu=gpu,
            gpus=1,
            seq=goal.seq,
            micro_batch=goal.micro_batch,
            lora_rank=goal.lora_rank,
        )
        smallest = smallest_count(base)
        if smallest is not None:
            counts = (smallest,) if smallest >= 8 else (smallest, 8)
            # More devices than needed repeat the smallest group: light methods then sync little.
            cases += [
                msgspec.structs.replace(base, gpus=count, shard_group=smallest) for count in counts
            ]
    return cases


def _train_case(goal: FinetuneGoal, case: FitCase, recompute: str) -> TrainCase:
    """The step of a fine-tune as the training predictor sees it."""
    return TrainCase(
        shape=goal.shape,
        gpu=case.gpu,
        framework="automodel",
        release_months=18.0,
        plan=TrainPlan(
            gpus=case.gpus,
            seq=goal.seq,
            micro_batch=goal.micro_batch,
            recompute=recompute,
            sharding="zero3" if case.shards > 1 else "none",
            is_lora=goal.method != "full",
            domain=scale_up_domain(case.gpu),
            nic_bytes_per_s=network_share(case.gpu),
        ),
    )


def answer_finetune(
    catalogue: Catalogue,
    goal: FinetuneGoal,
    *,
    kernels: GemmTable,
    fits: CollectiveFits,
    model: TrainModel,
) -> list[FinetuneAnswer]:
    """For each part the smallest count that fits and a node of eight, cheapest first.

    Raises UserError `never_fits` when nothing fits.
    """
    if goal.method not in METHODS:
        raise UserError(
            f"unknown method {goal.method!r}", field="method", hint="one of " + ", ".join(METHODS)
        )
    cases = _finetune_cases(goal)
    if not cases:
        billions = arch.parameter_count(goal.shape) / 1e9
        raise UserError(
            f"{goal.method} of {goal.shape.name} ({billions:.1f} B parameters) fits on no count "
            f"up to {COUNTS[-1]} of the given parts",
            code="never_fits",
            field="gpus",
            hint="try --method qlora, or larger parts",
        )
    answers = [answer_fit(case) for case in cases]
    trains = [
        _train_case(goal, case, answer.recompute)
        for case, answer in zip(cases, answers, strict=True)
    ]
    table = tabulate(trains, nominal_work(trains, kernels, fits))
    prediction = model.log_seconds(table)
    half = model.half_width(table, prediction)
    slower = DEQUANTISE_RATIO if goal.method == "qlora" else 1.0
    speeds = table.tokens_per_gpu / (np.exp(prediction.log_value) * slower)
    found = [
        _finetune_answer(
            catalogue,
            goal,
            answer,
            shards=cases[i].shards,
            speed=float(speeds[i]) * cases[i].gpus,
            half=float(half[i]),
            basis=gemm_basis(kernels, cases[i].gpu, dtype="bfloat16"),
        )
        for i, answer in enumerate(answers)
    ]
    return sorted(found, key=_rank)


def _finetune_answer(
    catalogue: Catalogue,
    goal: FinetuneGoal,
    answer: FitAnswer,
    *,
    shards: int,
    speed: float,
    half: float,
    basis: str,
) -> FinetuneAnswer:
    half = range_half_width(half, basis)
    hours = None if goal.tokens is None else goal.tokens / speed / 3600.0
    price = cost.device_price(catalogue, catalogue.gpus[answer.gpu], gpus=answer.gpus)
    return FinetuneAnswer(
        fit=answer,
        shard_group=shards,
        method=goal.method,
        tokens_per_s=speed,
        tokens_per_s_low=speed * math.exp(-half),
        tokens_per_s_high=speed * math.exp(half),
        hours=hours,
        cost_usd=None if price is None or hours is None else hours * answer.gpus * price.usd_h,
        price=price,
        basis=basis,
    )


def _rank(answer: FinetuneAnswer) -> tuple[float, str, int]:
    rate = 1e3 if answer.price is None else answer.price.usd_h
    return (answer.fit.gpus * rate / answer.tokens_per_s, answer.fit.gpu, answer.fit.gpus)
