"""Fine-tuning and fit questions: does it fit, on how few devices, how fast.

Memory follows `memory.py` with the torchtune profile (compiled blocks, chunked loss); speed follows
the training predictor with the LoRA arithmetic (no weight gradients).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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
from tercio.sizing.kernels import GemmTable, gemm_basis
from tercio.sizing.memory import MemoryCase, MemoryParts, memory_parts, runtime_bytes
from tercio.sizing.tables_train import network_share, scale_up_domain
from tercio.sizing.train import TrainCase, TrainPlan

METHODS = ("full", "lora", "qlora")
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

# Reading 4-bit weights costs 5 to 30 % of the time of a step; the middle is used.
DEQUANTISE_RATIO = 1.15


class FitCase(msgspec.Struct, frozen=True, kw_only=True):
    """One question: this model, this way, on these devices."""

    shape: ModelShape
    method: str
    gpu: Gpu
    gpus: int
    seq: int
    micro_batch: float = 1.0
    lora_rank: int = 16
    optimizer: str = ""


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
    """Memory of the question under one recompute mode; states are fully sharded over the devices."""
    many = case.gpus > 1
    method = "inference" if case.method == "inference" else case.method
    optimizer = case.optimizer or ("adamw" if method in ("full", "pretrain") else "adamw_bf16")
    split = case.gpus if many else 1
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
            tp=case.gpus if many and method == "inference" else 1,
        )  # fmt: skip
    )
    return parts


def answer_once(case: FitCase) -> tuple[bool, str, MemoryParts]:
    """(fits, recompute, memory): the least recompute that fits, or full recompute where none does."""
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
        if answer_once(msgspec.structs.replace(case, gpus=count))[0]:
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
        gpu=case.gpu.name, gpus=case.gpus, fits=verdict, recompute=recompute, memory=parts,
        needed_bytes=needed, usable_bytes=case.gpu.usable_bytes, smallest_gpus=smallest,
        change=_advice(case, verdict, smallest, parts),
    )  # fmt: skip


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
    """One way to fine-tune, with its speed. Ranges are 80 %."""

    fit: FitAnswer
    method: str
    tokens_per_s: float
    tokens_per_s_low: float
    tokens_per_s_high: float
    hours: float | None
    cost_usd: float | None
    price: Price | None
    basis: str


def answer_finetune(
    catalogue: Catalogue, shape: ModelShape, *, method: str, gpus: Sequence[Gpu], seq: int,
    micro_batch: float, tokens: float | None, lora_rank: int, kernels: GemmTable,
    fits: CollectiveFits, model: TrainModel,
) -> list[FinetuneAnswer]:  # fmt: skip
    """For each part the smallest count that fits and a node of eight, cheapest first.

    Raises UserError `never_fits` when nothing fits.
    """
    if method not in METHODS:
        raise UserError(
            f"unknown method {method!r}", field="method", hint="one of " + ", ".join(METHODS)
        )
    cases: list[FitCase] = []
    for gpu in gpus:
        base = FitCase(
            shape=shape,
            method=method,
            gpu=gpu,
            gpus=1,
            seq=seq,
            micro_batch=micro_batch,
            lora_rank=lora_rank,
        )
        smallest = smallest_count(base)
        if smallest is None:
            continue
        for count in sorted({smallest, max(8, smallest)}):
            cases.append(msgspec.structs.replace(base, gpus=count))
    if not cases:
        raise UserError(
            f"{method} of {shape.name} ({arch.parameter_count(shape) / 1e9:.1f} B parameters) fits on "
            f"no count up to {COUNTS[-1]} of the given parts",
            code="never_fits", field="gpus", hint="try --method qlora, or larger parts",
        )  # fmt: skip
    answers = [answer_fit(case) for case in cases]
    trains = [
        TrainCase(
            shape=shape,
            gpu=case.gpu,
            framework="automodel",
            release_months=18.0,
            plan=TrainPlan(
                gpus=case.gpus,
                seq=seq,
                micro_batch=micro_batch,
                recompute=answer.recompute,
                sharding="zero3" if case.gpus > 1 else "none",
                is_lora=method != "full",
                domain=scale_up_domain(case.gpu),
                nic_bytes_per_s=network_share(case.gpu),
            ),
        )  # fmt: skip
        for case, answer in zip(cases, answers, strict=True)
    ]
    table = tabulate(trains, nominal_work(trains, kernels, fits))
    prediction = model.log_seconds(table)
    half = model.half_width(table, prediction)
    found = []
    for i, (case, answer) in enumerate(zip(cases, answers, strict=True)):
        seconds = float(np.exp(prediction.log_value[i])) * (
            DEQUANTISE_RATIO if method == "qlora" else 1.0
        )
        speed = float(table.tokens_per_gpu[i]) * case.gpus / seconds
        hours = None if tokens is None else tokens / speed / 3600.0
        price = cost.device_price(catalogue, case.gpu, gpus=case.gpus)
        found.append(
            FinetuneAnswer(
                fit=answer,
                method=method,
                tokens_per_s=speed,
                tokens_per_s_low=speed * math.exp(-float(half[i])),
                tokens_per_s_high=speed * math.exp(float(half[i])),
                hours=hours,
                cost_usd=None
                if price is None or hours is None
                else hours * case.gpus * price.usd_h,
                price=price,
                basis=gemm_basis(kernels, case.gpu, dtype="bfloat16"),
            )  # fmt: skip
        )
    return sorted(found, key=lambda a: _rank(a, case_price=a.price))


def _rank(answer: FinetuneAnswer, *, case_price: Price | None) -> tuple[float, str, int]:
    rate = 1e3 if case_price is None else case_price.usd_h
    return (answer.fit.gpus * rate / answer.tokens_per_s, answer.fit.gpu, answer.fit.gpus)
