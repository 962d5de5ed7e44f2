"""Memory of training and fine-tuning, by part, from first principles.

Weights, gradients and optimizer states follow ZeRO (1910.02054) and the Megatron tables;
activations follow Korthikanti et al. (2205.05198) with flash attention, generalised to gated and
grouped-query blocks, experts and state-space layers. Bytes are per device at the peak of a step.
`Profile` holds what differs between frameworks.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tercio.errors import UserError
from tercio.sizing import architecture as arch
from tercio.sizing.architecture import ModelShape
from tercio.sizing.catalogue import GIB, Gpu
from tercio.sizing.train_plan import TrainPlan

# Bytes per weight of a stored format. NF4: 4 bits and one fp32 scale per 64; double quantisation
# packs the scales to 8 bits (2305.14314). int4 with groups of 128 carries a 16-bit scale and zero.
WEIGHT_BYTES: Mapping[str, float] = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "nf4": 0.5625,
    "nf4-dq": 0.516,
    "int4": 0.53,
    "mxfp4": 0.53,
    "nvfp4": 0.5625,
}

# Optimizer bytes per trained parameter beside the weight itself: moments, and a master copy where
# the weight is not fp32.
OPTIMIZER_BYTES: Mapping[str, float] = {
    "adamw": 12.0,
    "adamw_bf16": 4.0,
    "adamw_8bit": 2.0,
    "adamw_paged_8bit": 0.0,
    "sgd": 8.0,
    "muon": 8.0,
    "adafactor": 4.0,
    "adamw_fp32": 8.0,
}

METHODS = ("pretrain", "full", "lora", "qlora", "adapter", "adapter_v2", "inference")


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """How one framework holds tensors.

    `block_bytes` and `norm_bytes` are bytes per token and hidden element kept per layer beyond the
    products' own tensors: residual copies and rotary outputs, and eager RMS norms. `logit_bytes`
    is bytes per token and vocabulary entry at the loss. `gate_bytes` is bytes per feed-forward
    element of a gated block: three tensors eager, two where the product is fused. `growth_ratio`
    covers allocator fragmentation; `kept_ratio` is the share of checkpoints that stays on the
    device.
    """

    block_bytes: float
    norm_bytes: float
    logit_bytes: float
    growth_ratio: float
    gradient_bytes: float
    optimizer: str
    weight_bytes: float = 2.0
    gate_bytes: float = 6.0
    kept_ratio: float = 1.0
    has_narrow_head: bool = False
    has_stage_buffers: bool = False
    parallel_logit_bytes: float = 0.0


PROFILES: Mapping[str, Profile] = {
    # Fused norms and rotary kernels, fp32 gradients, distributed optimizer.
    "megatron": Profile(
        block_bytes=8.0,
        norm_bytes=0.0,
        logit_bytes=10.0,
        growth_ratio=1.05,
        gradient_bytes=4.0,
        optimizer="adamw",
    ),
    # FSDP2: fp32 shards, bf16 gathers, compiled blocks; logits kept as bf16 and three fp32 copies.
    "titan": Profile(
        block_bytes=6.0,
        norm_bytes=0.0,
        logit_bytes=14.0,
        growth_ratio=1.04,
        gradient_bytes=4.0,
        optimizer="adamw_fp32",
        weight_bytes=4.0,
        gate_bytes=4.0,
        has_stage_buffers=True,
        parallel_logit_bytes=20.0,
    ),
    "titan_eager": Profile(
        block_bytes=8.4,
        norm_bytes=0.0,
        logit_bytes=14.0,
        growth_ratio=1.04,
        gradient_bytes=4.0,
        optimizer="adamw_fp32",
        weight_bytes=4.0,
        has_stage_buffers=True,
        parallel_logit_bytes=20.0,
    ),
    # Eager blocks, weights and states in bf16, loss in chunks.
    "litgpt": Profile(
        block_bytes=11.0,
        norm_bytes=8.6,
        logit_bytes=6.0,
        growth_ratio=1.0,
        gradient_bytes=2.0,
        optimizer="adamw_bf16",
        has_narrow_head=True,
    ),
    # Compiled blocks, bf16 weights, 8-bit optimizer, loss in eight chunks of bf16 logits.
    "torchtune": Profile(
        block_bytes=9.5,
        norm_bytes=0.0,
        logit_bytes=2.0,
        growth_ratio=1.0,
        gradient_bytes=2.0,
        optimizer="adamw_paged_8bit",
        gate_bytes=4.0,
    ),
    # Checkpoints move to host memory; the loss keeps two copies of the logits.
    "unsloth": Profile(
        block_bytes=8.0,
        norm_bytes=0.0,
        logit_bytes=8.0,
        growth_ratio=1.05,
        gradient_bytes=4.0,
        optimizer="adamw",
        gate_bytes=4.0,
        kept_ratio=0.1,
    ),
    # Eager transformers; the loss keeps bf16 logits, an fp32 copy, its shifted copy and a gradient.
    "hf": Profile(
        block_bytes=14.0,
        norm_bytes=10.0,
        logit_bytes=16.0,
        growth_ratio=1.05,
        gradient_bytes=4.0,
        optimizer="adamw",
    ),
    # llm-foundry FSDP: fp32 master shards, fused low-precision norms.
    "foundry": Profile(
        block_bytes=10.0,
        norm_bytes=0.0,
        logit_bytes=10.0,
        growth_ratio=1.05,
        gradient_bytes=4.0,
        optimizer="adamw_fp32",
        weight_bytes=4.0,
    ),
}


class MemoryCase(msgspec.Struct, frozen=True, kw_only=True):
    """One way to hold a model on devices. `micro_batch` is sequences per device and microbatch.

    `shards` is the number of ranks that split the states under `sharding`; `in_flight` the
    microbatches whose activations a pipeline stage holds at once.
    """

    shape: ModelShape
    method: str = "pretrain"
    profile: str = "megatron"
    weight_format: str = "bf16"
    optimizer: str = ""
    seq: float = 0.0
    micro_batch: float = 1.0
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    shards: int = 1
    expert_shards: int = 1
    sharding: str = "none"
    recompute: str = "none"
    in_flight: float = 1.0
    lora_rank: int = 8
    has_offload: bool = False
    kept_outputs: int = 1


class MemoryParts(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes per device at the peak, by part. `total_bytes` is their sum times fragmentation."""

    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    gathered_bytes: float
    activations_bytes: float
    logits_bytes: float
    buffers_bytes: float
    fragmentation_bytes: float

    @property
    def total_bytes(self) -> float:
        """Everything the framework's allocator holds."""
        return float(sum(getattr(self, field) for field in self.__struct_fields__))


# CUDA context and NCCL buffers, outside the allocator: 0.47 to 0.92 GiB measured on A100 to B200,
# and 1 GiB more with communicators.
CONTEXT_BYTES = 0.6 * GIB
COMMUNICATOR_BYTES = 1.0 * GIB


def runtime_bytes(gpus: int) -> float:
    """What driver and communication hold beside the allocator on each device."""
    return CONTEXT_BYTES + (COMMUNICATOR_BYTES if gpus > 1 else 0.0)


def split_params(shape: ModelShape, *, tp: int, pp: int, ep: int) -> tuple[float, float]:
    """Dense and routed parameters of one device, on the first pipeline stage.

    The first stage also holds the input embedding, whole; the last the head.
    """
    routed = float(arch.routed_params(shape))
    ends = float(arch.embedding_params(shape)) + float(arch.head_params(shape))
    dense = float(arch.parameter_count(shape)) - routed - ends
    edge = ends if pp == 1 else max(arch.embedding_params(shape), arch.head_params(shape))
    return (dense / pp + edge) / tp, routed / (pp * ep)


def trained_params(case: MemoryCase) -> float:
    """Parameters that receive gradients: adapters for the light methods, else all."""
    shape = case.shape
    if case.method in ("pretrain", "full"):
        return float(arch.parameter_count(shape))
    if case.method in ("lora", "qlora"):
        queries = shape.heads * shape.head_dim
        keys = shape.kv_heads * shape.head_dim
        per_layer = case.lora_rank * (2 * shape.hidden + queries + keys)
        return float(shape.layers * per_layer)
    if case.method == "adapter_v2":
        return float(shape.layers * (10 * shape.hidden + 4 * shape.ffn))
    if case.method == "adapter":
        return float(shape.layers * 10 * shape.hidden)
    return 0.0


def layer_output_widths(shape: ModelShape) -> tuple[float, float, float]:
    """(inputs, core, outputs) elements per token of one dense block's products.

    Inputs are what weight gradients need, core what flash attention keeps, outputs what the
    products write.
    """
    hidden = float(shape.hidden)
    queries = (
        2 * arch.attention_width(shape) / 2 if shape.is_mla else float(shape.heads * shape.head_dim)
    )
    keys = float(2 * shape.kv_heads * shape.head_dim) if not shape.is_mla else 2 * queries
    core = 2 * queries + keys
    ffn_out = shape.ffn * (2.0 if shape.is_gated else 1.0)
    inputs = hidden + queries + hidden + shape.ffn
    return inputs, core, queries + keys + hidden + ffn_out + hidden


def _kept_per_token(case: MemoryCase, profile: Profile) -> float:
    """Bytes per token that all layers of the model keep for the backward pass, before TP."""
    shape, hidden = case.shape, float(case.shape.hidden)
    counts = shape.dense_layers + shape.moe_layers
    blocks = max(shape.attention_layers + shape.linear_layers + shape.mamba_layers, counts)
    if case.recompute == "full":
        return 2.0 * hidden * blocks * profile.kept_ratio
    inputs, core, outputs = layer_output_widths(shape)
    gate = profile.gate_bytes if shape.is_gated else 2.0
    if case.recompute == "selective":
        # Every second product is kept, with the block input and the attention output; an eager run
        # keeps its residual copies too.
        per_attention = (4.0 + max(profile.block_bytes - 6.0, 0.0)) * hidden + outputs
        dense = per_attention * shape.dense_layers
        attention = per_attention * max(shape.attention_layers - shape.dense_layers, 0) * 0.5
    else:
        kept = profile.block_bytes + (0.0 if shape.has_biases else profile.norm_bytes)
        attention = shape.attention_layers * (2.0 * core + kept * hidden)
        dense = shape.dense_layers * gate * shape.ffn
        if shape.attention_layers < counts:
            dense += (shape.dense_layers - shape.attention_layers) * kept * hidden * 0.5
        if case.method in ("pretrain", "full"):
            dense += 0.0 if profile.optimizer == "adamw" else 2.0 * inputs * shape.dense_layers
        dense += _method_bytes(case) * shape.dense_layers
    routed = shape.top_k * (2.0 * (shape.expert_latent or hidden) + gate * shape.expert_ffn)
    moe = shape.moe_layers * (routed + gate * shape.shared_ffn + 4.0 * shape.experts)
    inner = float(shape.mamba_heads * shape.mamba_head_dim)
    mamba = shape.mamba_layers * (14.0 * inner + 4.0 * hidden)
    values = float(shape.linear_value_heads * shape.linear_head_dim)
    linear = shape.linear_layers * (16.0 * values + 4.0 * hidden)
    share = 0.6 if case.recompute == "selective" else 1.0
    return attention + dense + share * (moe + mamba + linear)


def _method_bytes(case: MemoryCase) -> float:
    """Extra bytes per token and layer of the fine-tuning method and the weight format."""
    inputs, _, outputs = layer_output_widths(case.shape)
    extra = 0.0
    if case.method == "adapter_v2":
        # A trained scale and bias on every product keeps its output, trained norms their input.
        extra += 2.0 * outputs + 4.0 * case.shape.hidden
    if case.weight_format.startswith("nf4") and case.profile == "litgpt":
        # The 4-bit product keeps its input.
        extra += 2.0 * inputs
    return extra


def _working_set(case: MemoryCase, profile: Profile) -> float:
    """Bytes per token of the one block that is recomputed while its gradients are made."""
    if case.recompute == "none":
        return 0.0
    whole = msgspec.structs.replace(case, recompute="none")
    return _kept_per_token(whole, profile) / max(case.shape.layers, 1)


def _weights_bytes(case: MemoryCase, profile: Profile, dense: float, routed: float) -> float:
    """Stored weights of one device before sharding; embeddings and norms stay wide."""
    if case.weight_format not in WEIGHT_BYTES:
        raise UserError(
            f"unknown weight format {case.weight_format!r}",
            field="weight_format",
            hint="one of " + ", ".join(WEIGHT_BYTES),
        )
    width = WEIGHT_BYTES[case.weight_format]
    if case.weight_format in ("bf16", "fp16", "fp32"):
        if case.method in ("pretrain", "full") and case.weight_format == "bf16":
            width = profile.weight_bytes
        return (dense + routed) * width
    wide = arch.embedding_params(case.shape) / case.tp + arch.norm_params(case.shape) / case.pp
    if not profile.has_narrow_head:
        wide += arch.head_params(case.shape) / case.tp
    return max(dense - wide, 0.0) * width + wide * 2.0 + routed * width


def memory_parts(case: MemoryCase) -> MemoryParts:
    """Peak bytes per device by part. Raises UserError for an unknown method, profile or format."""
    if case.method not in METHODS:
        raise UserError(
            f"unknown method {case.method!r}", field="method", hint="one of " + ", ".join(METHODS)
        )
    if case.profile not in PROFILES:
        raise UserError(
            f"unknown framework {case.profile!r}",
            field="framework",
            hint="one of " + ", ".join(PROFILES),
        )
    profile = PROFILES[case.profile]
    dense, routed = split_params(case.shape, tp=case.tp, pp=case.pp, ep=case.ep)
    weights = _weights_bytes(case, profile, dense, routed)
    whole = max(float(arch.parameter_count(case.shape)), 1.0)
    trained = trained_params(case) / whole
    optimizer_name = case.optimizer or profile.optimizer
    if case.weight_format == "fp32" and optimizer_name == "adamw":
        optimizer_name = "adamw_fp32"
    split = {"none": 1, "zero1": case.shards, "zero2": case.shards, "zero3": case.shards}[
        case.sharding
    ]
    expert_split = case.expert_shards if case.sharding != "none" else 1
    optimizer = OPTIMIZER_BYTES[optimizer_name] * trained * (dense / split + routed / expert_split)
    gradients = profile.gradient_bytes * trained * (dense + routed)
    if case.sharding in ("zero2", "zero3"):
        gradients = profile.gradient_bytes * trained * (dense / split + routed / expert_split)
    gathered = 0.0
    if case.sharding == "zero3":
        weights = weights / split
        gathered = _gathered_bytes(case, dense, routed, trained)
    if case.has_offload:
        optimizer = weights = gradients = 0.0
        gathered = 2.0 * (dense + routed) * 0.3
    if optimizer_name == "adamw_paged_8bit" and case.method in ("full", "pretrain"):
        # Gradients are consumed inside the backward pass: only the largest one lives.
        gradients = 2.0 * arch.embedding_params(case.shape)
    activations, logits = _activation_bytes(case, profile)
    buffers = _buffer_bytes(case, profile)
    parts = weights + gradients + optimizer + gathered + activations + logits + buffers
    return MemoryParts(
        weights_bytes=weights,
        gradients_bytes=gradients,
        optimizer_bytes=optimizer,
        gathered_bytes=gathered,
        activations_bytes=activations,
        logits_bytes=logits,
        buffers_bytes=buffers,
        fragmentation_bytes=parts * (profile.growth_ratio - 1.0),
    )


def _gathered_bytes(case: MemoryCase, dense: float, routed: float, trained: float) -> float:
    """Unsharded parameters alive at once under full sharding.

    Two blocks and the larger embedding, forward weights and gradients. A pipeline keeps all of its
    stage gathered. litgpt loads the whole model on each device before it shards, which is its peak.
    """
    if case.profile == "litgpt":
        return (dense + routed) * 2.0 * 1.1
    if case.pp > 1:
        return (dense + routed) * (2.0 + 4.0)
    layers = max(case.shape.layers / case.pp, 1.0)
    block = (dense + routed) / layers
    edge = arch.embedding_params(case.shape) / case.tp
    return (2.0 * block + edge) * (2.0 + 2.0 * (1.0 if trained > 0.5 else 0.0))


def _activation_bytes(case: MemoryCase, profile: Profile) -> tuple[float, float]:
    """Activations and logits of one device."""
    if case.method == "inference":
        tokens = case.seq or 128.0
        kept = arch.kv_bytes(case.shape, tokens=tokens, element_bytes=2.0) * case.micro_batch
        return kept / case.tp, 4.0 * case.shape.vocab * case.micro_batch
    tokens = case.micro_batch * case.seq / case.cp
    per_token = _kept_per_token(case, profile) / case.pp * max(case.in_flight, 1.0)
    kept = tokens * per_token / case.tp
    width = profile.logit_bytes
    if case.tp > 1 and profile.parallel_logit_bytes:
        # A loss over a split vocabulary runs operation by operation: it keeps the fp32 copy, its
        # exponential, the log probabilities and the gradient beside the bf16 logits.
        width = profile.parallel_logit_bytes
    logits = tokens * case.shape.vocab * width / case.tp
    # The loss is over before the first block is recomputed: only the larger of the two lives.
    rebuilt = tokens * _working_set(case, profile) / case.tp
    if case.tp > 1:
        # Tensor parallelism gathers the input of a product whole, and holds its gradient and the
        # partial output before they are reduced.
        kept += 6.0 * tokens * case.shape.hidden
    if case.pp == 1:
        return (kept, logits) if logits > rebuilt else (kept + rebuilt, 0.0)
    kept += rebuilt
    if profile.has_stage_buffers:
        # Receive buffers of every microbatch, forward and backward, whole on each TP rank.
        kept += case.kept_outputs * tokens * case.shape.hidden * 4.0
    logits += (case.kept_outputs - 1) * tokens * case.shape.vocab * 2.0 / case.tp
    # The first stage holds most activations, the last the logits: the peak is the larger.
    last = tokens * (per_token / max(case.in_flight, 1.0)) / case.tp
    return (kept, 0.0) if kept > last + logits else (last, logits)


def _buffer_bytes(case: MemoryCase, profile: Profile) -> float:
    """Workspaces: products, and the widened copy of the largest 4-bit matrix, made twice."""
    base = 32.0 * 1024**2
    if case.weight_format in ("nf4", "nf4-dq"):
        widest = (
            case.shape.vocab if profile.has_narrow_head else max(case.shape.ffn, case.shape.hidden)
        )
        base += 2.1 * 2.0 * widest * case.shape.hidden
    if case.profile == "hf" and case.sharding in ("zero1", "zero2"):
        # DeepSpeed's reduce and gather buckets of 5e8 elements each.
        base += 2.0 * 2.0 * 5e8
    return base


def plan_memory(shape: ModelShape, plan: TrainPlan, *, profile: str = "megatron") -> MemoryParts:
    """Memory of a training plan, with the 1F1B or interleaved schedule's microbatches in flight."""
    in_flight = 1.0
    if plan.pp > 1:
        in_flight = float(min(plan.microbatches, plan.pp))
        if plan.virtual_stages > 1:
            in_flight *= 1.0 + (plan.pp - 1) / (plan.pp * plan.virtual_stages)
    method = "lora" if plan.is_lora else "pretrain"
    return memory_parts(
        MemoryCase(
            shape=shape,
            method=method,
            profile=profile,
            seq=float(plan.seq),
            micro_batch=plan.micro_batch,
            tp=plan.tp,
            pp=plan.pp,
            cp=plan.cp,
            ep=plan.ep,
            shards=plan.dp * plan.cp,
            expert_shards=max(plan.gpus // (plan.ep * plan.pp), 1),
            sharding=plan.sharding,
            recompute=plan.recompute,
            in_flight=in_flight,
        )
    )


def fits(parts: MemoryParts, gpu: Gpu, *, gpus: int) -> bool:
    """Whether the peak and the runtime's own memory stay within what the device can use."""
    return parts.total_bytes + runtime_bytes(gpus) <= gpu.usable_bytes


def states_bytes(parts: MemoryParts) -> float:
    """Weights, gradients and optimizer states: the floor that no recompute lowers."""
    return parts.weights_bytes + parts.gradients_bytes + parts.optimizer_bytes
