"""Serving capacity: replicas, layout and batch that meet a load within latency limits."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from tercio.errors import UserError
from tercio.sizing import cost
from tercio.sizing.architecture import ModelShape
from tercio.sizing.calibrate_serve import ServeModel, tabulate, tpot_parts
from tercio.sizing.catalogue import Catalogue, Gpu
from tercio.sizing.collectives import CollectiveFits
from tercio.sizing.cost import Price
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


class ServeGoal(msgspec.Struct, frozen=True, kw_only=True):
    """A load and its limits: requests per second, tokens in and out, seconds per token."""

    shape: ModelShape
    isl: float
    osl: float
    rps: float
    ttft_s: float
    tpot_s: float
    gpus: tuple[Gpu, ...]
    precision: str = ""
    backend: str = "vllm"


class ServeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One way to carry the load. Ranges are 80 %; None where price or power is not catalogued.

    `ttft_compute_s` is the prompt alone, `ttft_wait_s` the mean queueing before it.
    """

    gpu: str
    precision: str
    tp: int
    replicas: int
    gpus: int
    batch: float
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
    usd_per_million_tokens: float | None
    joules_per_token: float | None
    price: Price | None
    basis: str
    binds: str


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
            for tp in (1, 2, 4, 8):
                if goal.shape.heads % tp or tp > max(scale_up_domain(gpu), 8):
                    continue
                base = ServeCase(
                    shape=goal.shape,
                    gpu=gpu,
                    isl=goal.isl,
                    osl=goal.osl,
                    concurrency=1.0,
                    tp=tp,
                    moe_tp=tp,
                    precision=precision,
                    kv_format="bf16" if precision == "bf16" else "fp8",
                    backend=goal.backend,
                    harness="inferencex",
                    domain=max(scale_up_domain(gpu), 1),
                    nic_bytes_per_s=network_share(gpu),
                )
                room = cache_pool_bytes(base) / cache_bytes_per_sequence(base, goal.isl + goal.osl)
                cases += [
                    msgspec.structs.replace(base, concurrency=float(batch))
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
            f"{goal.shape.name} fits on no replica of up to 8 of the given parts",
            code="never_fits",
            field="gpus",
            hint="use a narrower format or a larger part",
        )
    table = tabulate(cases, table=kernels, fits=fits)
    tpot = model.log_tpot(table)
    half = model.tpot_ranges.half_width(model.tpot_residual.rows, table.covariates, tpot)
    tpot_s = np.exp(tpot.log_value)
    single = [msgspec.structs.replace(case, concurrency=1.0) for case in cases]
    ttft_s = np.exp(model.log_ttft(tabulate(single, table=kernels, fits=fits)).log_value)
    joules = np.exp(model.log_energy(table))
    parts = tpot_parts(model.tpot_theta, table)
    best: dict[tuple[str, str], ServeAnswer] = {}
    for i, case in enumerate(cases):
        answer = _answer(
            catalogue,
            goal,
            case,
            tpot_s=float(tpot_s[i]),
            half=float(half[i]),
            ttft_s=float(ttft_s[i]),
            joules=float(joules[i]),
            parts={k: float(v[i]) for k, v in parts.items()},
            basis=gemm_basis(kernels, case.gpu, dtype=gemm_format(case)),
        )
        if answer is None:
            continue
        key = (answer.gpu, answer.precision)
        if key not in best or _rank(answer) < _rank(best[key]):
            best[key] = answer
    if not best:
        quickest = int(np.argmin(tpot_s))
        raise UserError(
            f"no layout meets {goal.tpot_s * 1e3:.0f} ms per token "
            f"and {goal.ttft_s:.2f} s to the first",
            code="infeasible",
            field="tpot",
            hint=f"the quickest is {tpot_s[quickest] * 1e3:.1f} ms per token and "
            f"{ttft_s[quickest]:.2f} s on {cases[quickest].tp} x {cases[quickest].gpu.name}",
        )
    return sorted(best.values(), key=_rank)


def _rank(answer: ServeAnswer) -> tuple[float, int, str]:
    usd = answer.usd_per_million_tokens
    return (usd if usd is not None else 1e6 * answer.gpus, answer.gpus, answer.gpu)


def _answer(
    catalogue: Catalogue,
    goal: ServeGoal,
    case: ServeCase,
    *,
    tpot_s: float,
    half: float,
    ttft_s: float,
    joules: float,
    parts: dict[str, float],
    basis: str,
) -> ServeAnswer | None:
    """The answer of one layout and batch, or None where it misses a limit."""
    if tpot_s > goal.tpot_s:
        return None
    half = range_half_width(half, basis)
    most = case.concurrency / (ttft_s + goal.osl * tpot_s)
    replicas = max(1, math.ceil(goal.rps / (TARGET_LOAD * most)))
    # Prompts queue for the prefill share of the device.
    load = goal.rps / replicas * ttft_s
    wait_s = queueing_seconds(load=min(load, 0.999), service_s=ttft_s, servers=1.0)
    if ttft_s + wait_s > goal.ttft_s:
        return None
    devices = replicas * case.gpus
    price = cost.device_price(catalogue, case.gpu, gpus=case.gpus)
    out = goal.rps * goal.osl
    scale = tpot_s / max(sum(parts.values()), 1e-12)
    shares = {name.removesuffix("_s"): value * scale for name, value in parts.items()}
    return ServeAnswer(
        gpu=case.gpu.name,
        precision=case.precision,
        tp=case.tp,
        replicas=replicas,
        gpus=devices,
        batch=case.concurrency,
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
        usd_per_million_tokens=None
        if price is None
        else price.usd_h * devices / (3600.0 * out) * 1e6,
        joules_per_token=joules if case.gpu.tdp_w else None,
        price=price,
        basis=basis,
        binds=max(shares, key=lambda name: shares[name]),
    )
