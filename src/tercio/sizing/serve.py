"""Serving time and memory of one replica, itemised before calibration.

`decode_work` gives the nominal seconds of the mechanisms behind one generated token under
continuous batching, `prompt_work` those of one prompt. Steady state: each decode step of a batch
of B sequences shares the device with the prefill of B isl / osl prompt tokens.
"""

from __future__ import annotations

import math

import msgspec

from tercio.errors import UserError
from tercio.sizing import architecture as arch
from tercio.sizing.architecture import ModelShape
from tercio.sizing.catalogue import GIB, Gpu
from tercio.sizing.collectives import CollectiveFits, collective_seconds
from tercio.sizing.kernels import ELEMENT_BYTES
from tercio.sizing.train import GemmTimer, block_counts, block_products

BACKENDS = ("trtllm", "vllm", "sglang")
FORMATS = ("bf16", "fp8", "fp4")


class ServeCase(msgspec.Struct, frozen=True, kw_only=True):
    """One replica under steady load, everything known before the run.

    `tp` splits attention, `attention_dp` repeats it; experts are split over `moe_ep` and sliced by
    `moe_tp`. `concurrency` counts sequences in flight on the replica, `isl` and `osl` tokens.
    `release_months` is the age of the engine in months after 2025-01, `harness` the load generator.

    Attributes:
        prefix_hit_ratio: share of the prompt tokens whose cache is there already.
        drafts: tokens that a draft model proposes per step; 0 for no speculation.
        accept_ratio: share of the drafts that are accepted.
        draft_cost_ratio: time of one draft over that of a step.
        expert_imbalance: tokens of the busiest expert-parallel device over their mean.
        has_prefill: False for a decode worker whose prompts are computed elsewhere.
    """

    shape: ModelShape
    gpu: Gpu
    isl: float
    osl: float
    concurrency: float
    tp: int = 1
    attention_dp: int = 1
    moe_tp: int = 1
    moe_ep: int = 1
    precision: str = "bf16"
    kv_format: str = "bf16"
    backend: str = "vllm"
    is_block_scaled: bool = False
    release_months: float = 12.0
    harness: str = ""
    domain: int = 8
    nic_bytes_per_s: float = 50e9
    prefix_hit_ratio: float = 0.0
    drafts: int = 0
    accept_ratio: float = 0.0
    draft_cost_ratio: float = 0.05
    expert_imbalance: float = 1.0
    has_prefill: bool = True

    @property
    def tokens_per_step(self) -> float:
        """Tokens that one step makes of a sequence: 1, or the accepted drafts and one more.

        (1 - q^(g+1)) / (1 - q) for acceptance q and g drafts (Leviathan et al., 2211.17192, eq. 1).
        """
        if self.accept_ratio >= 1.0:
            return self.drafts + 1.0
        return (1.0 - self.accept_ratio ** (self.drafts + 1)) / (1.0 - self.accept_ratio)

    @property
    def gpus(self) -> int:
        """Devices of the replica."""
        return self.tp * self.attention_dp


class ServeWork(msgspec.Struct, frozen=True, kw_only=True):
    """Nominal seconds behind one decode step, and of the prompt tokens that share it."""

    gemm_s: float
    expert_s: float
    cache_s: float
    head_s: float
    reduce_s: float
    move_s: float
    layers_s: float
    moe_layers_s: float
    step_s: float
    sequences_s: float
    prefill_s: float
    batch: float


class PromptWork(msgspec.Struct, frozen=True, kw_only=True):
    """Nominal seconds of one prompt of `isl` tokens."""

    gemm_s: float
    expert_s: float
    attention_s: float
    reduce_s: float
    layers_s: float
    step_s: float
    tokens_s: float


def check_case(case: ServeCase) -> None:
    """Raise UserError naming what makes a replica impossible."""
    if case.isl <= 0 or case.osl <= 0 or case.concurrency <= 0:
        raise UserError("isl, osl and concurrency must be positive", field="isl")
    for name, low, high in (
        ("prefix_hit_ratio", 0.0, 1.0), ("accept_ratio", 0.0, 1.0), ("drafts", 0, 64),
        ("draft_cost_ratio", 0.0, 1.0), ("expert_imbalance", 1.0, 1e3),
    ):  # fmt: skip
        value = getattr(case, name)
        if not low <= value <= high:
            raise UserError(
                f"{name} is {value:g}", field=name, hint=f"it lies between {low:g} and {high:g}"
            )
    if case.shape.heads % case.tp:
        raise UserError(
            f"{case.shape.heads} attention heads are not divisible by tp = {case.tp}",
            field="tp",
            hint=f"tp must divide {case.shape.heads}",
        )
    if case.precision not in FORMATS:
        raise UserError(
            f"unknown precision {case.precision!r}",
            field="precision",
            hint="one of " + ", ".join(FORMATS),
        )


def gemm_format(case: ServeCase) -> str:
    """The kernel table of dense products. gpt-oss keeps them in bf16; its experts are 4-bit."""
    if case.precision == "bf16" or (case.precision == "fp4" and case.shape.has_sinks):
        return "bfloat16"
    if case.precision == "fp8":
        return "fp8_block" if case.is_block_scaled else "fp8"
    return "nvfp4"


def weight_bytes(case: ServeCase) -> float:
    """Bytes of all weights: quantised products, bf16 embeddings and head."""
    shape = case.shape
    width = {"bf16": 2.0, "fp8": 1.0, "fp4": 0.5625}[case.precision]
    wide = float(arch.embedding_params(shape) + arch.head_params(shape) + arch.norm_params(shape))
    total = float(arch.parameter_count(shape))
    if case.precision == "fp4" and shape.has_sinks:
        wide = total - arch.routed_params(shape)
    return (total - wide) * width + wide * 2.0


def device_weight_bytes(case: ServeCase) -> float:
    """Weights of one device: experts split over all, the rest over `tp` only."""
    shape = case.shape
    total = weight_bytes(case)
    width = {"bf16": 2.0, "fp8": 1.0, "fp4": 0.5625}[case.precision]
    routed = arch.routed_params(shape) * width
    return (total - routed) / case.tp + routed / max(case.moe_tp * case.moe_ep, case.gpus)


def cache_bytes_per_sequence(case: ServeCase, tokens: float) -> float:
    """Cache bytes of one sequence on one device: split over tp, repeated past the kv heads."""
    width = ELEMENT_BYTES.get({"bf16": "bfloat16"}.get(case.kv_format, case.kv_format), 2.0)
    whole = arch.kv_bytes(case.shape, tokens=tokens, element_bytes=width)
    split = 1 if case.shape.is_mla else min(case.tp, max(case.shape.kv_heads, 1))
    return whole / split


def cache_pool_bytes(case: ServeCase) -> float:
    """Memory left for the cache: 90 % of the device less weights, activations and runtime."""
    activations = 8192.0 * (10.0 * case.shape.hidden + 2.0 * case.shape.ffn / case.tp) * 2.0
    runtime = (1.5 if case.gpus > 1 else 0.7) * GIB
    return 0.9 * case.gpu.usable_bytes - device_weight_bytes(case) - activations - runtime


def running_batch(case: ServeCase) -> float:
    """Sequences of the replica that run at once: the concurrency, or what the cache holds."""
    pool = cache_pool_bytes(case)
    held = cache_bytes_per_sequence(case, case.isl + 0.5 * case.osl)
    if pool <= 0:
        return 0.0
    return min(case.concurrency, max(pool / held, 1.0) * case.attention_dp)


# Share of an isolated kernel's launch and drain that a captured graph hides behind its predecessor.
GRAPH_HIDDEN_S = 3e-6


def _graphed(
    case: ServeCase, time: GemmTimer, dtype: str, sizes: tuple[float, float, float]
) -> float:
    """Seconds of a product inside a captured graph: the table's time less the hidden launch.

    Never below the time to read the weights at 92 % of the memory bandwidth.
    """
    m, n, k = sizes
    width = ELEMENT_BYTES[dtype]
    return max(time(dtype, m, n, k) - GRAPH_HIDDEN_S, n * k * width / (0.92 * case.gpu.bandwidth()))


def _products_seconds(case: ServeCase, time: GemmTimer, rows: float) -> float:
    """Dense products of all layers for `rows` tokens on one attention rank, forward only."""
    dtype = gemm_format(case)
    counts = block_counts(case.shape)
    total = 0.0
    for kind, products in block_products(case.shape, case.tp).items():
        total += counts[kind] * sum(_graphed(case, time, dtype, (rows, n, k)) for n, k in products)
    return total


def _experts_seconds(case: ServeCase, gpu: Gpu, tokens: float, time: GemmTimer) -> float:
    """Routed experts of all layers for `tokens` of the replica: touched weights or arithmetic."""
    shape = case.shape
    if not shape.moe_layers:
        return 0.0
    width = {"bf16": 2.0, "fp8": 1.0, "fp4": 0.5625}[case.precision]
    local = shape.experts / case.moe_ep
    missed = math.pow(1.0 - shape.top_k / shape.experts, tokens)
    touched = local * (1.0 - missed)
    size = float(arch.expert_params(shape)) / case.moe_tp
    memory = touched * size * width / (0.8 * gpu.bandwidth())
    # The step waits for the device with the most tokens; slices of all experts share them evenly.
    uneven = case.expert_imbalance if case.moe_ep > 1 else 1.0
    rows = uneven * tokens * shape.top_k / case.moe_ep
    per_expert = max(rows / max(touched, 1.0), 1.0)
    dtype = {"bf16": "bfloat16", "fp8": "fp8", "fp4": "nvfp4"}[case.precision]
    depth = float(shape.expert_latent or shape.hidden)
    inner = shape.expert_ffn / case.moe_tp
    # Arithmetic at the rate of one product of a full device, never below the rate of its own rows.
    full = max(rows, 1.0)
    up = inner * (2 if shape.is_gated else 1)
    compute = _graphed(case, time, dtype, (full, float(up), depth))
    compute += _graphed(case, time, dtype, (full, depth, inner))
    tile = math.pow(min(per_expert / 64.0, 1.0), 0.15)
    return shape.moe_layers * (max(memory, compute / tile) + 4e-6)


def _reduce_seconds(case: ServeCase, fits: CollectiveFits, rows: float) -> float:
    """Two all-reduces per layer over tp."""
    if case.tp <= 1:
        return 0.0
    blocks = case.shape.attention_layers + case.shape.linear_layers + case.shape.mamba_layers
    blocks += case.shape.dense_layers + case.shape.moe_layers
    one = collective_seconds(
        fits,
        case.gpu,
        operation="all_reduce",
        ranks=case.tp,
        message_bytes=2.0 * rows * case.shape.hidden,
        domain=case.domain,
        nic_bytes_per_s=case.nic_bytes_per_s,
    )
    return blocks * one


def _move_seconds(case: ServeCase, fits: CollectiveFits, tokens: float) -> float:
    """Dispatch and combine of routed tokens where attention is data-parallel."""
    ranks = case.gpus
    if not case.shape.moe_layers or case.attention_dp <= 1:
        return 0.0
    spread = min(case.shape.top_k, ranks)
    size = 1.5 * tokens / ranks * case.shape.hidden * spread
    one = collective_seconds(
        fits,
        case.gpu,
        operation="alltoall",
        ranks=ranks,
        message_bytes=size,
        domain=case.domain,
        nic_bytes_per_s=case.nic_bytes_per_s,
    )
    return 2.0 * case.shape.moe_layers * one


def prefill_seconds_per_token(case: ServeCase, time: GemmTimer, fits: CollectiveFits) -> float:
    """Nominal seconds per prompt token of the replica, in chunks of 4,096 tokens."""
    chunk = 4096.0
    per_rank = chunk / case.attention_dp
    dense = _products_seconds(case, time, per_rank)
    experts = _experts_seconds(case, case.gpu, chunk, time)
    flops = 4.0 * chunk / case.attention_dp * arch.attention_width(case.shape) / case.tp
    flops *= arch.attention_span(case.shape, tokens=case.isl)
    attention = flops / (0.5 * case.gpu.flops("bf16"))
    reduce = _reduce_seconds(case, fits, per_rank) + _move_seconds(case, fits, chunk)
    return (dense + experts + attention + reduce) / chunk


def decode_work(case: ServeCase, *, time: GemmTimer, fits: CollectiveFits) -> ServeWork:
    """Nominal seconds per mechanism of one generated token at steady state."""
    check_case(case)
    batch = running_batch(case)
    if batch <= 0:
        raise UserError(
            f"the weights of {case.shape.name} leave no cache on {case.gpus} x {case.gpu.name}",
            code="never_fits",
            field="tp",
            hint="use more devices or a narrower format",
        )
    rows = max(batch / case.attention_dp, 1.0)
    shape = case.shape
    # A step checks the drafts and one more token of every sequence, and makes several of them.
    checked, many = 1.0 + case.drafts, (1.0 + case.drafts) * batch
    per = (1.0 + case.drafts * case.draft_cost_ratio) / case.tokens_per_step
    context = case.isl + 0.5 * case.osl
    # State and cache are read once per step by every sequence of the rank.
    cache = rows * cache_bytes_per_sequence(case, context) / (0.8 * case.gpu.bandwidth())
    layers = shape.attention_layers + shape.linear_layers + shape.mamba_layers
    head = time("bfloat16", rows * checked, shape.vocab / case.tp, float(shape.hidden))
    share = batch * case.isl * (1.0 - case.prefix_hit_ratio) / case.osl
    prompts = share * prefill_seconds_per_token(case, time, fits) if case.has_prefill else 0.0
    return ServeWork(
        gemm_s=per * _products_seconds(case, time, rows * checked),
        expert_s=per * _experts_seconds(case, case.gpu, many, time),
        cache_s=per * cache,
        head_s=per * head,
        reduce_s=per * _reduce_seconds(case, fits, rows * checked),
        move_s=per * _move_seconds(case, fits, many),
        layers_s=per * layers * 20e-6,
        moe_layers_s=per * shape.moe_layers * 20e-6,
        step_s=per * 1e-3,
        sequences_s=per * batch * 10e-6,
        prefill_s=prompts,
        batch=batch,
    )


def prompt_work(case: ServeCase, *, time: GemmTimer, fits: CollectiveFits) -> PromptWork:
    """Nominal seconds per mechanism of the first token of one prompt on an idle replica."""
    check_case(case)
    shape, known = case.shape, case.isl * case.prefix_hit_ratio
    rows = max(case.isl - known, 1.0)
    # Attended pairs of the new tokens: those of the whole prompt less those of the cached prefix.
    pairs = case.isl * arch.attention_span(shape, tokens=case.isl)
    pairs -= known * arch.attention_span(shape, tokens=max(known, 1.0))
    flops = 4.0 * pairs * arch.attention_width(shape) / case.tp
    layers = shape.attention_layers + shape.linear_layers + shape.mamba_layers + shape.moe_layers
    return PromptWork(
        gemm_s=_products_seconds(case, time, rows),
        expert_s=_experts_seconds(case, case.gpu, rows, time),
        attention_s=flops / (0.5 * case.gpu.flops("bf16")),
        reduce_s=_reduce_seconds(case, fits, rows) + _move_seconds(case, fits, rows),
        layers_s=layers * 100e-6,
        step_s=10e-3,
        tokens_s=rows * 2e-6,
    )


def queueing_seconds(*, load: float, service_s: float, servers: float, cv: float = 1.0) -> float:
    """Mean wait before a prompt is taken: M/G/k by Sakasegawa's approximation.

    W = (1 + cv^2) / 2 x service rho^(sqrt(2 (k + 1)) - 1) / (k (1 - rho)), with `cv` the standard
    deviation of the service time over its mean (1 when exponential); infinite at full load.
    """
    if load >= 1.0:
        return math.inf
    return (
        (1.0 + cv * cv)
        / 2.0
        * service_s
        * math.pow(load, math.sqrt(2.0 * (servers + 1.0)) - 1.0)
        / (servers * (1.0 - load))
    )
