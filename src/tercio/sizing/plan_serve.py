"""Serving capacity: replicas, layout and batch that meet a load within latency limits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from tercio.errors import UserError
from tercio.sizing import cost
from tercio.sizing.architecture import ModelShape
from tercio.sizing.calibrate_serve import ServeModel, tabulate, tpot_parts
from tercio.sizing.catalogue import Catalogue, Gpu
from tercio.sizing.collectives import CollectiveFits
from tercio.sizing.cost import Price, Terms
from tercio.sizing.kernels import GemmTable, gemm_basis, range_half_width
from tercio.sizing.serve import (
    ServeCase,
    cache_bytes_per_sequence,
    cache_pool_bytes,
    device_weight_bytes,
    gemm_format,
    queueing_seconds,
)
from tercio.sizing.tables_train import network_share, scale_up_domain

# A replica is planned to this share of what it can carry, so that waits stay short.
TARGET_LOAD = 0.8
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
TENSORS = (1, 2, 4, 8)
# Data-parallel attention with the experts spread over all of its devices.
SPREADS = (4, 8, 16, 32)
# Tried where nothing smaller holds the weights: these leave a board of eight.
WIDE_TENSORS = (16, 32)
MOST_PREFILL = 4096


class ServeGoal(msgspec.Struct, frozen=True, kw_only=True):
    """A load and its limits: requests per second, tokens in and out, seconds per token.

    Attributes:
        prefix_hit_ratio: share of the prompt tokens whose cache is there already.
        drafts, accept_ratio, draft_cost_ratio: of speculative decoding, see `ServeCase`.
        expert_imbalance: tokens of the busiest expert-parallel device over their mean.
        prompt_cv: standard deviation of the prompt length over its mean.
        is_disaggregated: whether prompts and answers are computed on pools of their own.
    """

    shape: ModelShape
    isl: float
    osl: float
    rps: float
    ttft_s: float
    tpot_s: float
    gpus: tuple[Gpu, ...]
    precision: str = ""
    backend: str = "vllm"
    prefix_hit_ratio: float = 0.0
    drafts: int = 0
    accept_ratio: float = 0.0
    draft_cost_ratio: float = 0.05
    expert_imbalance: float = 1.0
    prompt_cv: float = 1.0
    is_disaggregated: bool = False
    terms: Terms = Terms()


class PrefillPool(msgspec.Struct, frozen=True, kw_only=True):
    """The workers that compute prompts; `transfer_s` moves the cache of one to the decode pool."""

    tp: int
    attention_dp: int
    replicas: int
    gpus: int
    transfer_s: float


class ServeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One way to carry the load. Ranges are 80 %; None where price or power is not catalogued.

    `ttft_compute_s` is the prompt alone (and the move of its cache to another pool),
    `ttft_wait_s` the mean queueing before it. `gpus` counts those of `prefill` too.
    """

    gpu: str
    precision: str
    tp: int
    attention_dp: int
    replicas: int
    gpus: int
    prefill: PrefillPool | None
    batch: float
    tokens_per_step: float
    tpot_s: float
    tpot_low_s: float
    tpot_high_s: float
    ttft_compute_s: float
    ttft_wait_s: float
    goodput_rps: float
    weights_bytes: float
    cache_pool_bytes: float
    cache_sequence_bytes: float
    parts_s: dict[str, float]
    usd_h: float | None
    usd_per_million_tokens: float | None
    joules_per_token: float | None
    gco2_per_million_tokens: float | None
    price: Price | None
    basis: str
    binds: str
    change: str


def precisions_of(gpu: Gpu, wanted: str) -> tuple[str, ...]:
    """Weight formats tried on a part."""
    if wanted:
        return (wanted,)
    found = ["bf16"]
    if gpu.fp8_flops:
        found.append("fp8")
    if gpu.fp4_flops:
        found.append("fp4")
    return tuple(found)


def _cases(goal: ServeGoal) -> list[ServeCase]:
    """Every layout and batch whose weights and cache fit."""
    cases: list[ServeCase] = []
    for gpu in goal.gpus:
        for precision in precisions_of(gpu, goal.precision):
            sizes = [(tp, 1) for tp in TENSORS if tp <= max(scale_up_domain(gpu), 8)]
            if goal.shape.is_moe:
                sizes += [(1, n) for n in SPREADS if n <= max(scale_up_domain(gpu), 8)]
            found = _batches(goal, gpu, precision, sizes)
            if not found:
                wide = [(tp, 1) for tp in WIDE_TENSORS]
                wide += [(1, n) for n in SPREADS] if goal.shape.is_moe else []
                found = _batches(goal, gpu, precision, wide)
            cases += found
    return cases


def _batches(
    goal: ServeGoal, gpu: Gpu, precision: str, sizes: Sequence[tuple[int, int]]
) -> list[ServeCase]:
    """Layouts of (tensor, data-parallel attention) sizes with every batch that they hold."""
    cases: list[ServeCase] = []
    for tp, spread in sizes:
        if goal.shape.heads % tp or (spread > 1 and goal.shape.experts % spread):
            continue
        base = ServeCase(
            shape=goal.shape,
            gpu=gpu,
            isl=goal.isl,
            osl=goal.osl,
            concurrency=1.0,
            tp=tp,
            attention_dp=spread,
            moe_tp=tp if spread == 1 else 1,
            moe_ep=spread,
            precision=precision,
            kv_format="bf16" if precision == "bf16" else "fp8",
            backend=goal.backend,
            harness="inferencex",
            domain=max(scale_up_domain(gpu), 1),
            nic_bytes_per_s=network_share(gpu),
            prefix_hit_ratio=goal.prefix_hit_ratio,
            drafts=goal.drafts,
            accept_ratio=goal.accept_ratio,
            draft_cost_ratio=goal.draft_cost_ratio,
            expert_imbalance=goal.expert_imbalance,
            has_prefill=not goal.is_disaggregated,
        )
        room = cache_pool_bytes(base) / cache_bytes_per_sequence(base, goal.isl + goal.osl)
        cases += [
            msgspec.structs.replace(base, concurrency=float(batch * spread))
            for batch in BATCHES
            if batch <= room
        ]
    return cases


def plan_serve(
    catalogue: Catalogue,
    goal: ServeGoal,
    *,
    kernels: GemmTable,
    fits: CollectiveFits,
    model: ServeModel,
) -> list[ServeAnswer]:
    """The cheapest layout of each device type and format that meets the limits, cheapest first.

    Raises UserError `never_fits` when the weights fit nowhere, `infeasible` when no layout meets
    the limits, naming the best reached.
    """
    if min(goal.isl, goal.osl, goal.rps, goal.ttft_s, goal.tpot_s) <= 0:
        raise UserError("tokens, rate and limits must be positive", field="rps")
    cases = _cases(goal)
    if not cases:
        raise UserError(
            f"{goal.shape.name} fits on no replica of up to {WIDE_TENSORS[-1]} of the given parts",
            code="never_fits",
            field="gpus",
            hint="use a narrower format or a larger part",
        )
    rows = _rated(cases, kernels=kernels, fits=fits, model=model)
    pools = _prefill_pools(goal, rows) if goal.is_disaggregated else {}
    best: dict[tuple[str, str], ServeAnswer] = {}
    for row in rows:
        key = (row.case.gpu.name, row.case.precision)
        answer = _answer(catalogue, goal, row, pools.get(key))
        if answer is not None and (key not in best or _rank(answer) < _rank(best[key])):
            best[key] = answer
    if not best:
        quickest = min(rows, key=lambda row: row.tpot_s)
        soonest = min(rows, key=lambda row: row.ttft_s)
        raise UserError(
            f"no layout meets {goal.tpot_s * 1e3:.0f} ms per token "
            f"and {goal.ttft_s:.2f} s to the first",
            code="infeasible",
            field="tpot",
            hint=f"the quickest is {quickest.tpot_s * 1e3:.1f} ms per token on "
            f"{quickest.case.gpus} x {quickest.case.gpu.name}; the first token takes at least "
            f"{soonest.ttft_s:.2f} s, on {soonest.case.gpus} x {soonest.case.gpu.name}",
        )
    return sorted(best.values(), key=_rank)


class Rated(msgspec.Struct, frozen=True, kw_only=True):
    """One layout and batch with its predicted times and energy."""

    case: ServeCase
    tpot_s: float
    half: float
    ttft_s: float
    joules: float
    parts: dict[str, float]
    basis: str


def _rated(
    cases: Sequence[ServeCase],
    *,
    kernels: GemmTable,
    fits: CollectiveFits,
    model: ServeModel,
) -> list[Rated]:
    """All cases with their predictions, made at once."""
    table = tabulate(cases, table=kernels, fits=fits)
    tpot = model.log_tpot(table)
    half = model.tpot_ranges.half_width(model.tpot_residual.rows, table.covariates, tpot)
    tpot_s = np.exp(tpot.log_value)
    single = [msgspec.structs.replace(case, concurrency=1.0) for case in cases]
    ttft_s = np.exp(model.log_ttft(tabulate(single, table=kernels, fits=fits)).log_value)
    joules = np.exp(model.log_energy(table))
    parts = tpot_parts(model.tpot_theta, table)
    return [
        Rated(
            case=case,
            tpot_s=float(tpot_s[i]),
            half=float(half[i]),
            ttft_s=float(ttft_s[i]),
            joules=float(joules[i]),
            parts={name: float(values[i]) for name, values in parts.items()},
            basis=gemm_basis(kernels, case.gpu, dtype=gemm_format(case)),
        )
        for i, case in enumerate(cases)
    ]


class Waited(msgspec.Struct, frozen=True, kw_only=True):
    """A prefill pool, and what a prompt of it takes and waits."""

    pool: PrefillPool
    ttft_s: float
    wait_s: float


def _prefill_pools(goal: ServeGoal, rows: Sequence[Rated]) -> dict[tuple[str, str], Waited]:
    """The smallest pool of each part and format that answers prompts in time.

    A worker computes one prompt after the other; the pool is one queue before all workers.
    """
    best: dict[tuple[str, str], Waited] = {}
    for row in rows:
        if row.case.concurrency > row.case.attention_dp:
            continue
        held = cache_bytes_per_sequence(row.case, goal.isl) * row.case.tp
        transfer_s = held / (row.case.nic_bytes_per_s * row.case.gpus)
        found = _smallest_pool(goal, row, transfer_s)
        key = (row.case.gpu.name, row.case.precision)
        if found is not None and (key not in best or found.pool.gpus < best[key].pool.gpus):
            best[key] = found
    return best


def _smallest_pool(goal: ServeGoal, row: Rated, transfer_s: float) -> Waited | None:
    """The fewest workers at which prompt, transfer and mean wait keep the limit."""
    servers = max(1, math.ceil(goal.rps * row.ttft_s / TARGET_LOAD))
    while servers <= MOST_PREFILL and row.ttft_s + transfer_s <= goal.ttft_s:
        wait_s = queueing_seconds(
            load=goal.rps * row.ttft_s / servers, service_s=row.ttft_s, servers=float(servers),
            cv=goal.prompt_cv,
        )  # fmt: skip
        if row.ttft_s + transfer_s + wait_s <= goal.ttft_s:
            pool = PrefillPool(
                tp=row.case.tp,
                attention_dp=row.case.attention_dp,
                replicas=servers,
                gpus=servers * row.case.gpus,
                transfer_s=transfer_s,
            )
            return Waited(pool=pool, ttft_s=row.ttft_s + transfer_s, wait_s=wait_s)
        servers += 1
    return None


def _rank(answer: ServeAnswer) -> tuple[float, int, str]:
    usd = answer.usd_per_million_tokens
    return (usd if usd is not None else 1e6 * answer.gpus, answer.gpus, answer.gpu)


def _answer(
    catalogue: Catalogue, goal: ServeGoal, row: Rated, prefill: Waited | None
) -> ServeAnswer | None:
    """The answer of one layout and batch, or None where it misses a limit."""
    case, tpot_s = row.case, row.tpot_s
    if tpot_s > goal.tpot_s or (goal.is_disaggregated and prefill is None):
        return None
    half = range_half_width(row.half, row.basis)
    ttft_s = row.ttft_s if prefill is None else 0.0
    most = case.concurrency / (ttft_s + goal.osl * tpot_s)
    replicas = max(1, math.ceil(goal.rps / (TARGET_LOAD * most)))
    if prefill is None:
        # Prompts queue for the prefill share of the device.
        load = goal.rps / replicas * ttft_s
        wait_s = queueing_seconds(
            load=min(load, 0.999), service_s=ttft_s, servers=1.0, cv=goal.prompt_cv
        )
    else:
        ttft_s, wait_s = prefill.ttft_s, prefill.wait_s
    if ttft_s + wait_s > goal.ttft_s:
        return None
    devices = replicas * case.gpus + (prefill.pool.gpus if prefill else 0)
    price = cost.device_price(catalogue, case.gpu, gpus=case.gpus, term=goal.terms.price)
    usd_h = None if price is None else price.usd_h * devices
    shares = _shares(row)
    joules = row.joules if case.gpu.tdp_w and prefill is None else None
    grid = catalogue.grid(goal.terms.grid)
    return ServeAnswer(
        gpu=case.gpu.name,
        precision=case.precision,
        tp=case.tp,
        attention_dp=case.attention_dp,
        replicas=replicas,
        gpus=devices,
        prefill=None if prefill is None else prefill.pool,
        batch=case.concurrency,
        tokens_per_step=case.tokens_per_step,
        tpot_s=tpot_s,
        tpot_low_s=tpot_s * math.exp(-half),
        tpot_high_s=tpot_s * math.exp(half),
        ttft_compute_s=ttft_s,
        ttft_wait_s=wait_s,
        goodput_rps=most * TARGET_LOAD * replicas,
        weights_bytes=device_weight_bytes(case),
        cache_pool_bytes=cache_pool_bytes(case),
        cache_sequence_bytes=cache_bytes_per_sequence(case, goal.isl + goal.osl),
        parts_s=shares,
        usd_h=usd_h,
        usd_per_million_tokens=None
        if usd_h is None
        else usd_h / (3600.0 * goal.rps * goal.osl) * 1e6,
        joules_per_token=joules,
        gco2_per_million_tokens=None
        if joules is None or grid is None
        else joules / 3.6 * cost.NODE_FACTOR * cost.PUE * grid.gco2_per_kwh,
        price=price,
        basis=row.basis,
        binds=max(shares, key=lambda name: shares[name]),
        change=_domain_words(case),
    )


def _shares(row: Rated) -> dict[str, float]:
    """Seconds per token by part, scaled to the prediction."""
    scale = row.tpot_s / max(sum(row.parts.values()), 1e-12)
    return {name.removesuffix("_s"): value * scale for name, value in row.parts.items()}


def _domain_words(case: ServeCase) -> str:
    """Say where a replica leaves its scale-up domain; empty where it does not."""
    if case.gpus <= case.domain:
        return ""
    if case.domain == 1:
        return f"{case.gpu.name} has no NVLink: a replica of {case.gpus} talks over PCIe"
    return (
        f"a replica of {case.gpus} is too big for one NVLink domain of {case.domain}: "
        "its collectives cross the network"
    )
