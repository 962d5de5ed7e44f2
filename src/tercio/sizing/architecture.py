"""Exact parameter counts and per-layer dimensions of a model, from its published shape.

Owns `ModelShape`, one frozen value that covers dense, grouped-query, multi-head latent attention,
mixture-of-experts, linear-attention and state-space hybrids, tied embeddings and GPT-style
biases. Counts are integers and exact for every family whose totals are published; the tests hold
them to the published numbers.

Example:
    shape = catalogue.model("llama-3-8b")
    parameter_count(shape)  # 8030261248
"""

from __future__ import annotations

import msgspec

from tercio.errors import UserError


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """The dimensions of one model. Counts of layers, heads, elements; all integers are >= 0.

    `attention_layers` counts layers with softmax attention, `window_layers` those of them that see
    only the last `window` tokens. `dense_layers` and `moe_layers` count feed-forward blocks. A
    hybrid model has layers of one kind each, so the three need not add up to `layers`.
    """

    name: str
    hidden: int
    layers: int
    vocab: int
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    attention_layers: int = 0
    window_layers: int = 0
    window: int = 0
    ffn: int = 0
    is_gated: bool = True
    dense_layers: int = 0
    is_tied: bool = False
    has_biases: bool = False
    has_qkv_bias: bool = False
    has_qk_norm: bool = False
    has_output_gate: bool = False
    positions: int = 0
    experts: int = 0
    top_k: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0
    expert_latent: int = 0
    moe_layers: int = 0
    expert_bias: bool = False
    has_sinks: bool = False
    q_rank: int = 0
    kv_rank: int = 0
    nope_dim: int = 0
    rope_dim: int = 0
    v_dim: int = 0
    linear_layers: int = 0
    linear_key_heads: int = 0
    linear_value_heads: int = 0
    linear_head_dim: int = 0
    mamba_layers: int = 0
    mamba_heads: int = 0
    mamba_head_dim: int = 0
    mamba_groups: int = 0
    mamba_state: int = 0
    extra_params: int = 0
    source: str = ""
    date: str = ""
    assumed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in ("hidden", "layers", "vocab"):
            number = getattr(self, field)
            if number < 1:
                raise UserError(
                    f"model {self.name!r}: {field} is {number}, and must be at least 1",
                    field=field,
                    hint=f"give {field} as a positive integer",
                )
        for field in self.__struct_fields__:
            number = getattr(self, field)
            if isinstance(number, int) and number < 0:
                raise UserError(
                    f"model {self.name!r}: {field} is {number}, and must not be negative",
                    field=field,
                )
        if self.heads and self.kv_heads and self.heads % self.kv_heads:
            raise UserError(
                f"model {self.name!r}: {self.heads} heads are not divisible by "
                f"{self.kv_heads} key/value heads",
                field="kv_heads",
            )

    @property
    def is_mla(self) -> bool:
        """Whether attention keeps one latent vector per token (DeepSeek-V2, 2405.04434)."""
        return self.kv_rank > 0

    @property
    def is_moe(self) -> bool:
        """Whether any block routes tokens to experts."""
        return self.experts > 0 and self.moe_layers > 0


def attention_params(shape: ModelShape) -> int:
    """Parameters of one softmax-attention block, norms excluded.

    Llama-like: h a d + 2 h g d + a d h. MLA: h q + q + q a (d_n + d_r) + h (c + d_r) + c +
    c a (d_n + d_v) + a d_v h, with q and c the ranks (DeepSeek-V2, 2405.04434).
    """
    hidden, heads = shape.hidden, shape.heads
    if shape.is_mla:
        query = (
            hidden * shape.q_rank
            + shape.q_rank
            + shape.q_rank * heads * (shape.nope_dim + shape.rope_dim)
            if shape.q_rank
            else hidden * heads * (shape.nope_dim + shape.rope_dim)
        )
        latent = hidden * (shape.kv_rank + shape.rope_dim) + shape.kv_rank
        expand = shape.kv_rank * heads * (shape.nope_dim + shape.v_dim)
        return query + latent + expand + heads * shape.v_dim * hidden
    queries, keys = heads * shape.head_dim, shape.kv_heads * shape.head_dim
    count = 2 * hidden * queries + 2 * hidden * keys
    if shape.has_output_gate:
        count += hidden * queries
    if shape.has_biases:
        count += queries + 2 * keys + hidden
    elif shape.has_qkv_bias:
        count += queries + 2 * keys
    if shape.expert_bias:
        # gpt-oss: biases on all four projections and one sink logit per head.
        count += queries + 2 * keys + hidden + heads
    if shape.has_qk_norm:
        count += 2 * shape.head_dim
    return count


def mlp_params(shape: ModelShape, *, width: int, inner: int | None = None) -> int:
    """Parameters of one feed-forward block of `width`; `inner` is its input size."""
    size = shape.hidden if inner is None else inner
    count = (3 if shape.is_gated else 2) * size * width
    if shape.has_biases:
        count += width + size
    return count


def expert_params(shape: ModelShape) -> int:
    """Parameters of one routed expert."""
    size = shape.expert_latent or shape.hidden
    count = (3 if shape.is_gated else 2) * size * shape.expert_ffn
    if shape.expert_bias:
        count += 2 * shape.expert_ffn + size
    return count


def moe_fixed_params(shape: ModelShape) -> int:
    """Parameters of one expert block outside its experts: router, shared expert, latent maps."""
    count = shape.hidden * shape.experts
    if shape.expert_bias:
        count += shape.experts
    if shape.shared_ffn:
        count += (3 if shape.is_gated else 2) * shape.hidden * shape.shared_ffn
    if shape.expert_latent:
        count += 2 * shape.hidden * shape.expert_latent
    return count


def linear_attention_params(shape: ModelShape) -> int:
    """Parameters of one gated delta-rule block (Qwen3-Next): q, k, v, gate, out, decay, conv."""
    keys = shape.linear_key_heads * shape.linear_head_dim
    values = shape.linear_value_heads * shape.linear_head_dim
    projections = shape.hidden * (2 * keys + 2 * values + 2 * shape.linear_value_heads)
    small = 2 * shape.linear_value_heads + shape.linear_head_dim + 4 * (2 * keys + values)
    return projections + values * shape.hidden + small


def mamba_params(shape: ModelShape) -> int:
    """Parameters of one Mamba-2 block (2405.21060): in and out projections, conv, scalars."""
    inner = shape.mamba_heads * shape.mamba_head_dim
    mixed = inner + 2 * shape.mamba_groups * shape.mamba_state
    project = shape.hidden * (inner + mixed + shape.mamba_heads)
    return project + inner * shape.hidden + 5 * mixed + 3 * shape.mamba_heads + inner


def norm_params(shape: ModelShape) -> int:
    """Parameters of all normalisations of width hidden: one per block, and a final one."""
    blocks = shape.attention_layers + shape.linear_layers + shape.mamba_layers
    blocks += shape.dense_layers + shape.moe_layers
    return (blocks + 1) * shape.hidden * (2 if shape.has_biases else 1)


def embedding_params(shape: ModelShape) -> int:
    """Parameters of the input embedding and learned positions."""
    return (shape.vocab + shape.positions) * shape.hidden


def head_params(shape: ModelShape) -> int:
    """Parameters of a separate output head; 0 when tied."""
    return 0 if shape.is_tied else shape.vocab * shape.hidden


def parameter_count(shape: ModelShape) -> int:
    """All parameters, exact."""
    return (
        embedding_params(shape)
        + head_params(shape)
        + norm_params(shape)
        + shape.attention_layers * attention_params(shape)
        + shape.linear_layers * linear_attention_params(shape)
        + shape.mamba_layers * mamba_params(shape)
        + shape.dense_layers * mlp_params(shape, width=shape.ffn)
        + shape.moe_layers * (moe_fixed_params(shape) + shape.experts * expert_params(shape))
        + shape.extra_params
    )


def active_parameter_count(shape: ModelShape) -> int:
    """Parameters that one token passes through: `top_k` of the experts, all the rest."""
    idle = shape.moe_layers * (shape.experts - shape.top_k) * expert_params(shape)
    return parameter_count(shape) - idle


def routed_params(shape: ModelShape) -> int:
    """Parameters held by routed experts, all of them."""
    return shape.moe_layers * shape.experts * expert_params(shape)


def matmul_params(shape: ModelShape) -> int:
    """Active parameters that multiply a token: no input embedding, the output head included."""
    blocks = active_parameter_count(shape) - embedding_params(shape) - norm_params(shape)
    return blocks - shape.extra_params + (shape.vocab * shape.hidden if shape.is_tied else 0)


def kv_bytes_per_token(shape: ModelShape, *, element_bytes: float) -> float:
    """Cache bytes of one token past every window: 2 g d per layer, or c + d_r for MLA."""
    if shape.is_mla:
        return shape.attention_layers * (shape.kv_rank + shape.rope_dim) * element_bytes
    full = shape.attention_layers - shape.window_layers
    return 2.0 * full * shape.kv_heads * shape.head_dim * element_bytes


def kv_bytes(shape: ModelShape, *, tokens: float, element_bytes: float) -> float:
    """Cache bytes of one sequence of `tokens`; a window holds at most `window` of them."""
    total = kv_bytes_per_token(shape, element_bytes=element_bytes) * tokens
    if shape.window_layers and not shape.is_mla:
        held = min(tokens, float(shape.window or tokens))
        total += 2.0 * shape.window_layers * shape.kv_heads * shape.head_dim * element_bytes * held
    return total + state_bytes(shape)


def state_bytes(shape: ModelShape) -> float:
    """Constant recurrent state of one sequence, kept in 4-byte floats."""
    linear = shape.linear_value_heads * shape.linear_head_dim * shape.linear_head_dim
    mamba = shape.mamba_heads * shape.mamba_head_dim * shape.mamba_state
    return 4.0 * (shape.linear_layers * linear + shape.mamba_layers * mamba)


def attention_width(shape: ModelShape) -> float:
    """Heads x mean of key and value dimension: the width that attention FLOPs scale with."""
    if shape.is_mla:
        return shape.heads * (shape.nope_dim + shape.rope_dim + shape.v_dim) / 2
    return float(shape.heads * shape.head_dim)


def attention_span(shape: ModelShape, *, tokens: float) -> float:
    """Sum over attention layers of the mean number of keys a query sees (causal, windowed)."""
    full = shape.attention_layers - shape.window_layers
    window = float(shape.window or tokens)
    # A query at position i sees min(i, w) keys; its mean over a sequence of s > w is w - w^2/(2 s).
    seen = tokens / 2 if tokens <= window else window - window * window / (2 * tokens)
    return full * tokens / 2 + shape.window_layers * seen


def forward_flops_per_token(shape: ModelShape, *, tokens: float) -> float:
    """Forward FLOPs per token of a sequence of `tokens`: 2 N_mm + 4 a d x keys seen."""
    scan = 6.0 * shape.mamba_layers * shape.mamba_heads * shape.mamba_head_dim * shape.mamba_state
    scan += 6.0 * shape.linear_layers * shape.linear_value_heads * shape.linear_head_dim**2
    attention = 4.0 * attention_width(shape) * attention_span(shape, tokens=tokens)
    return 2.0 * matmul_params(shape) + attention + scan


def training_flops_per_token(shape: ModelShape, *, tokens: float) -> float:
    """Model FLOPs of training, no recompute, no causal halving: 6 N + 12 L a d s (PaLM, app. B)."""
    span = 2.0 * attention_span(shape, tokens=tokens)
    return 6.0 * matmul_params(shape) + 12.0 * attention_width(shape) * span
