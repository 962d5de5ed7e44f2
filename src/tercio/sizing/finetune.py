"""Fine-tuning: on how few devices does it fit, and how fast is it there.

Memory follows `fit.py`; speed follows the training predictor with the LoRA arithmetic (no weight
gradients).
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
from tercio.sizing.cost import Footprint, Price, Terms
from tercio.sizing.fit import COUNTS, FitAnswer, FitCase, answer_fit, smallest_count
from tercio.sizing.kernels import GemmTable, gemm_basis, range_half_width
from tercio.sizing.tables_train import network_share, scale_up_domain
from tercio.sizing.train_plan import TrainCase, TrainPlan

METHODS = ("full", "lora", "qlora")

# Reading 4-bit weights costs 5 to 30 % of the time of a step; the middle is used.
DEQUANTISE_RATIO = 1.15


class FinetuneAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One way to fine-tune, with its speed. Ranges are 80 %.

    `shard_group` is how many devices split the states among them, `probe_ratio` what the site's
    probes put into the speed.
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
    footprint: Footprint | None
    basis: str
    probe_ratio: float = 1.0


class FinetuneGoal(msgspec.Struct, frozen=True, kw_only=True):
    """What to fine-tune and on what. `tokens` is None where only speed is asked for.

    `counts` are the device counts to answer for; empty for the smallest and a node of eight.
    """

    shape: ModelShape
    method: str
    gpus: tuple[Gpu, ...]
    seq: int
    micro_batch: float = 1.0
    lora_rank: int = 16
    tokens: float | None = None
    counts: tuple[int, ...] = ()
    terms: Terms = Terms()


def _finetune_cases(goal: FinetuneGoal) -> list[FitCase]:
    """For each part the counts asked for, or the smallest that fits and a node of eight."""
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
            counts: tuple[int, ...] = (smallest,) if smallest >= 8 else (smallest, 8)
            counts = tuple(n for n in goal.counts if n >= smallest) if goal.counts else counts
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
            speed=float(speeds[i])
            * cases[i].gpus
            * catalogue.speed_ratio(goal.shape.name, goal.method, answer.gpu),
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
    gpu = catalogue.gpus[answer.gpu]
    price = cost.device_price(catalogue, gpu, gpus=answer.gpus, term=goal.terms.price)
    trained = answer.memory.optimizer_bytes * answer.gpus if goal.method != "full" else 0.0
    weights = 2.0 * float(arch.parameter_count(goal.shape))
    beside = hours and cost.footprint(
        catalogue,
        gpu,
        goal.terms,
        gpus=answer.gpus,
        hours=hours,
        checkpoint_bytes=trained or 7.0 * weights,
        weight_bytes=trained or weights,
    )
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
        footprint=beside or None,
        basis=basis,
        probe_ratio=catalogue.speed_ratio(goal.shape.name, goal.method, answer.gpu),
    )


def _rank(answer: FinetuneAnswer) -> tuple[float, str, int]:
    rate = 1e3 if answer.price is None else answer.price.usd_h
    return (answer.fit.gpus * rate / answer.tokens_per_s, answer.fit.gpu, answer.fit.gpus)
