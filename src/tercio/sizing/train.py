"""Training step time, itemised: the seconds of each mechanism before calibration.

`step_work` turns a model, a device and a plan into one `StepWork`: nominal seconds for every term
of a step on the slowest pipeline stage. `calibrate.py` owns the multipliers. All values are for
one GPU and one optimizer step.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tercio.sizing import architecture as arch
from tercio.sizing.architecture import ModelShape
from tercio.sizing.catalogue import Gpu
from tercio.sizing.collectives import CollectiveFits, collective_seconds
from tercio.sizing.kernels import GemmTable, gemm_seconds
from tercio.sizing.train_plan import TrainPlan


class StepWork(msgspec.Struct, frozen=True, kw_only=True):
    """Nominal seconds of one step per mechanism, on the stage that bounds it.

    `bubble_ratio` is idle over busy time of the pipeline. `weight_gather_s` repeats per microbatch
    under full sharding and overlaps with compute; `gradient_sync_s` happens once.
    """

    dense_s: float
    expert_s: float
    attention_s: float
    elementwise_s: float
    routing_s: float
    head_s: float
    launch_s: float
    tensor_s: float
    expert_move_s: float
    context_s: float
    pipeline_s: float
    weight_gather_s: float
    gradient_sync_s: float
    optimizer_s: float
    bubble_ratio: float
    tokens: float
    model_flops: float
    scores_s: float = 0.0


GemmTimer = Callable[[str, float, float, float], float]
"""(dtype, m, n, k) to seconds."""


def gemm_timer(table: GemmTable, gpu: Gpu) -> GemmTimer:
    """A timer of products on one device that remembers shapes it has seen."""
    seen: dict[tuple[str, float, float, float], float] = {}

    def timed(dtype: str, m: float, n: float, k: float) -> float:
        key = (dtype, m, n, k)
        if key not in seen:
            seen[key] = gemm_seconds(table, gpu, dtype=dtype, m=m, n=n, k=k)
        return seen[key]

    return timed


def block_products(shape: ModelShape, tp: int) -> dict[str, list[tuple[float, float]]]:
    """The (n, k) of every product of one block of each kind, after tensor parallelism."""
    hidden = float(shape.hidden)
    products: dict[str, list[tuple[float, float]]] = {}
    if shape.attention_layers:
        if shape.is_mla:
            rank = shape.q_rank or hidden
            heads = shape.heads / tp
            products["attention"] = [
                (rank + shape.kv_rank + shape.rope_dim, hidden),
                (heads * (shape.nope_dim + shape.rope_dim), rank),
                (heads * (shape.nope_dim + shape.v_dim), float(shape.kv_rank)),
                (hidden, heads * shape.v_dim),
            ]
        else:
            queries = shape.heads * shape.head_dim * (2 if shape.has_output_gate else 1)
            keys = max(2 * shape.kv_heads * shape.head_dim / tp, 2.0 * shape.head_dim)
            products["attention"] = [
                (queries / tp + keys, hidden),
                (hidden, shape.heads * shape.head_dim / tp),
            ]
    if shape.dense_layers:
        products["mlp"] = [
            (shape.ffn * (2 if shape.is_gated else 1) / tp, hidden),
            (hidden, shape.ffn / tp),
        ]
    if shape.linear_layers:
        values = shape.linear_value_heads * shape.linear_head_dim / tp
        keys = shape.linear_key_heads * shape.linear_head_dim / tp
        products["linear"] = [(2 * keys + 2 * values, hidden), (hidden, values)]
    if shape.mamba_layers:
        inner = shape.mamba_heads * shape.mamba_head_dim / tp
        products["mamba"] = [
            (2 * inner + 2 * shape.mamba_groups * shape.mamba_state / min(tp, 8), hidden),
            (hidden, inner),
        ]
    if shape.moe_layers:
        fixed: list[tuple[float, float]] = [(float(shape.experts), hidden)]
        if shape.shared_ffn:
            fixed += [
                (shape.shared_ffn * (2 if shape.is_gated else 1) / tp, hidden),
                (hidden, shape.shared_ffn / tp),
            ]
        if shape.expert_latent:
            fixed += [(float(shape.expert_latent), hidden), (hidden, float(shape.expert_latent))]
        products["moe"] = fixed
    return products


def block_counts(shape: ModelShape) -> dict[str, int]:
    """Blocks of each kind."""
    return {
        "attention": shape.attention_layers,
        "mlp": shape.dense_layers,
        "linear": shape.linear_layers,
        "mamba": shape.mamba_layers,
        "moe": shape.moe_layers,
    }


def gemm_dtype(precision: str) -> str:
    """The kernel table that a training precision reads."""
    return {"bf16": "bfloat16", "fp8": "fp8", "mxfp8": "fp8", "nvfp4": "nvfp4"}[precision]


def _dense_seconds(shape: ModelShape, time: GemmTimer, plan: TrainPlan, tokens: float) -> float:
    """All dense products of the model for one microbatch: forward, recompute and backward."""
    dtype = gemm_dtype(plan.precision)
    forwards = 1.0 + (1.0 if plan.recompute == "full" else 0.0)
    weight = 0.0 if plan.is_lora else 1.0
    total = 0.0
    counts = block_counts(shape)
    for kind, products in block_products(shape, plan.tp).items():
        block = 0.0
        for n, k in products:
            block += time(dtype, tokens, n, k) * forwards + time(dtype, tokens, k, n)
            if weight:
                block += time(dtype, n, k, tokens)
        total += block * counts[kind]
    return total


def _expert_seconds(
    shape: ModelShape, time: GemmTimer, gpu: Gpu, plan: TrainPlan, tokens: float
) -> float:
    """Routed experts of all layers for one microbatch, as one grouped product per layer.

    Each device holds E/e experts and receives tokens x k of them; the rate is that of a product
    with the mean rows per expert.
    """
    if not shape.moe_layers:
        return 0.0
    dtype = gemm_dtype(plan.precision)
    size = float(shape.expert_latent or shape.hidden)
    local = max(shape.experts / plan.ep, 1.0)
    # Sequence parallelism splits the tokens over the TP ranks before they are routed.
    rows = max(tokens / plan.tp * shape.top_k / local, 1.0)
    up = shape.expert_ffn * (2 if shape.is_gated else 1)
    forwards = 1.0 + (1.0 if plan.recompute == "full" else 0.0)
    weight = 0.0 if plan.is_lora else 1.0
    # The grouped kernel shares one launch, and small groups share the device: the time of one
    # product with all rows, at the efficiency of a product with the rows of one expert.
    total = 0.0
    for n, k in ((float(up), size), (size, float(shape.expert_ffn))):
        for m, width, depth, passes in (
            (rows, n, k, forwards),
            (rows, k, n, 1.0),
            (n, k, rows, weight),
        ):
            if passes:
                total += passes * _grouped_seconds(time, gpu, dtype, (m, width, depth), local)
    # A step waits for the expert-parallel device with the most tokens.
    uneven = plan.expert_imbalance if plan.ep > 1 else 1.0
    return total * shape.moe_layers * uneven


def _grouped_seconds(
    time: GemmTimer, gpu: Gpu, dtype: str, sizes: tuple[float, float, float], groups: float
) -> float:
    """`groups` products in one kernel: bound by arithmetic on a filled device, or by weights."""
    m, n, k = sizes
    one = time(dtype, m, n, k)
    fill = 4096.0
    scale = max(fill / m, 1.0) if m < n else 1.0
    shared = time(dtype, m * scale, n, k) / scale
    width = {"bfloat16": 2.0, "fp8": 1.0, "nvfp4": 0.5625}[dtype]
    memory = n * k * width / (0.8 * gpu.bandwidth())
    return groups * max(min(one, shared * 1.25), memory)


def _attention_seconds(shape: ModelShape, gpu: Gpu, plan: TrainPlan, tokens: float) -> float:
    """Attention cores and scans for one microbatch: forward 1, backward 2.5, recompute 1."""
    width = arch.attention_width(shape) / plan.tp
    span = arch.attention_span(shape, tokens=float(plan.seq))
    flops = 4.0 * tokens * width * span
    scan = 6.0 * shape.mamba_layers * shape.mamba_heads * shape.mamba_head_dim * shape.mamba_state
    scan += 12.0 * shape.linear_layers * shape.linear_value_heads * shape.linear_head_dim**2
    flops += 4.0 * tokens * scan / plan.tp
    passes = 3.5 + (0.0 if plan.recompute == "none" else 1.0)
    return passes * flops / (0.5 * gpu.flops("bf16"))


def _scores_bytes(shape: ModelShape, plan: TrainPlan) -> float:
    """Bytes of attention scores that are written out where no fused kernel serves the model.

    b a s^2 scores move as bf16 and fp32 about eight times over forward and backward.
    """
    if plan.has_fused_attention:
        return 0.0
    cells = plan.micro_batch * shape.heads * float(plan.seq) ** 2 / (plan.tp * plan.cp)
    return shape.attention_layers * cells * 24.0


def _moved_bytes(shape: ModelShape, plan: TrainPlan, tokens: float) -> float:
    """Bytes that norms, activations, residuals, rotary maps and casts move per microbatch."""
    hidden, tp = float(shape.hidden), plan.tp
    counts = block_counts(shape)
    passes = 2.5 + (1.0 if plan.recompute == "full" else 0.0)
    per_token = 0.0
    queries = arch.attention_width(shape)
    per_token += counts["attention"] * (8.0 * hidden / min(tp, 8) + 6.0 * queries / tp)
    ffn = shape.ffn * (3.0 if shape.is_gated else 2.0)
    per_token += counts["mlp"] * (8.0 * hidden / min(tp, 8) + 2.0 * ffn / tp)
    inner = shape.mamba_heads * shape.mamba_head_dim
    per_token += counts["mamba"] * (8.0 * hidden / min(tp, 8) + 16.0 * inner / tp)
    values = shape.linear_value_heads * shape.linear_head_dim
    per_token += counts["linear"] * (8.0 * hidden / min(tp, 8) + 16.0 * values / tp)
    per_token += counts["moe"] * (8.0 * hidden / min(tp, 8))
    if plan.precision != "bf16":
        # Casts read bf16 and write the narrow format twice (row and column scaled).
        per_token += (
            4.0
            * sum(
                counts[kind] * sum(k for _, k in products)
                for kind, products in block_products(shape, tp).items()
            )
            / 2.5
        )
    return tokens * per_token * passes


def _routing_bytes(shape: ModelShape, plan: TrainPlan, tokens: float) -> float:
    """Bytes moved by permutation, activation and recombination of routed tokens per microbatch."""
    size = float(shape.expert_latent or shape.hidden)
    act = shape.expert_ffn * (3.0 if shape.is_gated else 2.0)
    passes = 2.5 + (1.0 if plan.recompute == "full" else 0.0)
    casts = 2.0 if plan.precision != "bf16" else 0.0
    row = 6.0 * size + 2.0 * act + casts * (size + shape.expert_ffn)
    return tokens / plan.tp * shape.moe_layers * shape.top_k * row * passes


Collective = Callable[[str, int, float, int], float]
"""(operation, ranks, message bytes, devices between neighbours) to seconds."""


def _collectives(gpu: Gpu, plan: TrainPlan, fits: CollectiveFits) -> Collective:
    """A timer of collectives over ranks that sit some devices apart."""

    def timed(operation: str, ranks: int, size: float, inner: int) -> float:
        return collective_seconds(
            fits,
            gpu,
            operation=operation,
            ranks=ranks,
            message_bytes=size,
            domain=max(plan.domain // inner, 1),
            nic_bytes_per_s=plan.nic_bytes_per_s,
        )

    return timed


def _passes(plan: TrainPlan) -> float:
    """Forward passes of one microbatch, recompute included."""
    return 2.0 if plan.recompute == "full" else 1.0


def _blocks(shape: ModelShape) -> int:
    """Mixer and feed-forward blocks of the model."""
    mixers = shape.attention_layers + shape.linear_layers + shape.mamba_layers
    return mixers + shape.dense_layers + shape.moe_layers


def _tensor_seconds(
    shape: ModelShape, plan: TrainPlan, tokens: float, collective: Collective
) -> float:
    """Gather and scatter of every block's activations over tp, both ways."""
    if plan.tp <= 1:
        return 0.0
    size = 2.0 * tokens * shape.hidden
    pair = collective("all_gather", plan.tp, size, 1)
    pair += collective("reduce_scatter", plan.tp, size, 1)
    return _blocks(shape) * pair * (_passes(plan) + 1.0)


def _expert_move_seconds(
    shape: ModelShape, plan: TrainPlan, tokens: float, collective: Collective
) -> float:
    """Dispatch and combine of routed tokens over ep, both ways; 8-bit on the way out."""
    if not shape.moe_layers or plan.ep <= 1:
        return 0.0
    size = tokens / plan.tp * shape.top_k * float(shape.expert_latent or shape.hidden)
    size *= plan.expert_imbalance
    send = collective("alltoall", plan.ep, size * (1.0 if plan.precision != "bf16" else 2.0), 1)
    back = collective("alltoall", plan.ep, 2.0 * size, 1)
    return shape.moe_layers * (send + back) * (_passes(plan) + 1.0)


def _context_seconds(shape: ModelShape, plan: TrainPlan, collective: Collective) -> float:
    """Exchange of keys and values over cp, three times per attention layer."""
    if plan.cp <= 1:
        return 0.0
    keys = 4.0 * (plan.seq / plan.cp) * plan.micro_batch * shape.kv_heads * shape.head_dim
    return (
        3.0
        * shape.attention_layers
        * collective("all_gather", plan.cp, keys * plan.cp / plan.tp, plan.tp)
    )


def _head_seconds(
    shape: ModelShape, gpu: Gpu, plan: TrainPlan, tokens: float, time: GemmTimer
) -> float:
    """Output head in bf16, and the traffic of logits and loss."""
    vocabulary, hidden = shape.vocab / plan.tp, float(shape.hidden)
    products = time("bfloat16", tokens, vocabulary, hidden)
    products += time("bfloat16", tokens, hidden, vocabulary)
    if not plan.is_lora:
        products += time("bfloat16", vocabulary, hidden, tokens)
    return products + tokens * vocabulary * 14.0 / (0.8 * gpu.bandwidth())


def _pipeline_seconds(shape: ModelShape, gpu: Gpu, plan: TrainPlan, tokens: float) -> float:
    """Transfers between stages for one microbatch."""
    if plan.pp <= 1:
        return 0.0
    far = plan.tp * plan.cp * plan.pp > plan.domain
    rate = 0.74 * plan.nic_bytes_per_s if far else 0.7 * (gpu.link_bytes_per_s or 16e9)
    return 2.0 * plan.virtual_stages * (2.0 * tokens * shape.hidden / plan.tp / rate + 15e-6)


def step_work(
    shape: ModelShape, gpu: Gpu, plan: TrainPlan, *, time: GemmTimer, fits: CollectiveFits
) -> StepWork:
    """Nominal seconds per mechanism of one optimizer step. Pure; about 100 us per call."""
    tokens = plan.micro_batch * plan.seq / plan.cp
    # Seconds of one microbatch through the whole model, times this: seconds of a step and stage.
    share = float(plan.microbatches) / plan.pp
    moved = share / (0.8 * gpu.bandwidth())
    collective = _collectives(gpu, plan, fits)
    kernels = 14.0 * _blocks(shape) + 20.0 * shape.moe_layers
    gather, sync, optimizer = _state_seconds(shape, gpu, plan, collective)
    return StepWork(
        dense_s=share * _dense_seconds(shape, time, plan, tokens),
        expert_s=share * _expert_seconds(shape, time, gpu, plan, tokens),
        attention_s=share * _attention_seconds(shape, gpu, plan, tokens),
        elementwise_s=moved * _moved_bytes(shape, plan, tokens),
        routing_s=moved * _routing_bytes(shape, plan, tokens),
        head_s=share * _head_seconds(shape, gpu, plan, tokens, time),
        launch_s=share * kernels * (_passes(plan) + 1.2) * 5e-6,
        tensor_s=share * _tensor_seconds(shape, plan, tokens, collective),
        expert_move_s=share * _expert_move_seconds(shape, plan, tokens, collective),
        context_s=share * _context_seconds(shape, plan, collective),
        pipeline_s=plan.microbatches * _pipeline_seconds(shape, gpu, plan, tokens),
        weight_gather_s=gather,
        gradient_sync_s=sync,
        optimizer_s=optimizer,
        bubble_ratio=(plan.pp - 1) / (plan.virtual_stages * plan.microbatches),
        tokens=plan.tokens_per_step,
        model_flops=plan.tokens_per_step * arch.training_flops_per_token(shape, tokens=plan.seq),
        scores_s=moved * _scores_bytes(shape, plan),
    )


def _state_seconds(
    shape: ModelShape,
    gpu: Gpu,
    plan: TrainPlan,
    collective: Callable[[str, int, float, int], float],
) -> tuple[float, float, float]:
    """Weight gathers, gradient sync and optimizer seconds of one step."""
    routed = arch.routed_params(shape)
    dense = arch.parameter_count(shape) - routed
    held = dense / (plan.tp * plan.pp) + routed / (plan.ep * plan.pp)
    inner = plan.tp
    ranks = plan.dp * plan.cp
    trained = 0.01 * held if plan.is_lora else held
    gather = sync = 0.0
    dense_held = dense / (plan.tp * plan.pp)
    expert_ranks = max(plan.gpus // (plan.ep * plan.pp), 1)
    expert_held = routed / (plan.ep * plan.pp)
    if plan.sharding == "zero3":
        # A pipeline keeps gathered weights through its microbatches; otherwise forward and backward
        # gather them again each time.
        repeats = 1.0 if plan.pp > 1 else 2.0 * plan.microbatches
        syncs = 1.0 if plan.pp > 1 else float(plan.microbatches)
        gather = repeats * (
            collective("all_gather", ranks, 2.0 * dense_held, inner)
            + collective("all_gather", expert_ranks, 2.0 * expert_held, plan.ep)
        )
        sync = syncs * collective("reduce_scatter", ranks, plan.gradient_bytes * dense_held, inner)
        sync += syncs * collective(
            "reduce_scatter", expert_ranks, plan.gradient_bytes * expert_held, plan.ep
        )
    elif ranks > 1:
        scale = 0.01 if plan.is_lora else 1.0
        size = scale * dense_held
        sync = collective("reduce_scatter", ranks, plan.gradient_bytes * size, inner)
        sync += collective("all_gather", ranks, 2.0 * size, inner)
        if expert_held and expert_ranks > 1:
            size = scale * expert_held
            sync += collective("reduce_scatter", expert_ranks, plan.gradient_bytes * size, plan.ep)
            sync += collective("all_gather", expert_ranks, 2.0 * size, plan.ep)
    shards = 1 if plan.sharding == "none" else ranks
    local = trained * dense_held / held / shards
    if expert_held:
        local += trained * expert_held / held / (1 if plan.sharding == "none" else expert_ranks)
    optimizer = local * 30.0 / (0.7 * gpu.bandwidth()) + 2e-3
    return gather, sync, optimizer
