"""Reads a model's shape from the configuration files of training frameworks.

Hugging Face config.json, Megatron and NeMo arguments, torchtitan and llm-foundry model blocks come
in as plain mappings (the caller parses JSON, YAML or TOML). A missing key is named; where a usual
value exists it is assumed and listed in `ModelShape.assumed`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tercio.errors import UserError
from tercio.sizing.architecture import ModelShape

Value = str | int | float | bool | None | list["Value"] | dict[str, "Value"]

# Ours, and what each family of files calls it. The first present name wins.
NAMES: Mapping[str, tuple[str, ...]] = {
    "hidden": ("hidden_size", "hidden-size", "d_model", "n_embd", "dim", "encoder_hidden_size"),
    "layers": ("num_hidden_layers", "num_layers", "num-layers", "n_layers", "n_layer"),
    "heads": ("num_attention_heads", "num-attention-heads", "n_heads", "n_head", "num_heads"),
    "kv_heads": (
        "num_key_value_heads",
        "num_query_groups",
        "num-query-groups",
        "n_kv_heads",
        "kv_n_heads",
    ),
    "head_dim": ("head_dim", "kv_channels", "kv-channels"),
    "ffn": ("intermediate_size", "ffn_hidden_size", "ffn-hidden-size", "n_inner", "ffn_dim"),
    "vocab": ("vocab_size", "padded_vocab_size", "vocab-size", "embedding_size"),
    "experts": (
        "num_experts",
        "n_routed_experts",
        "num_local_experts",
        "num-experts",
        "num_moe_experts",
    ),
    "top_k": (
        "num_experts_per_tok",
        "moe_router_topk",
        "moe-router-topk",
        "top_k_experts",
        "moe_topk",
    ),
    "expert_ffn": ("moe_intermediate_size", "moe_ffn_hidden_size", "moe-ffn-hidden-size"),
    "dense_layers": ("first_k_dense_replace", "first_k_dense"),
    "q_rank": ("q_lora_rank", "q-lora-rank"),
    "kv_rank": ("kv_lora_rank", "kv-lora-rank"),
    "nope_dim": ("qk_nope_head_dim", "qk_head_dim"),
    "rope_dim": ("qk_rope_head_dim", "qk_pos_emb_head_dim"),
    "v_dim": ("v_head_dim",),
    "window": ("sliding_window",),
}
NESTED = ("text_config", "model", "llm_config", "model_args", "language_config")
REQUIRED = ("hidden", "layers", "vocab")


def flatten(config: Mapping[str, Value]) -> dict[str, Value]:
    """The file's keys with the text model's block on top of them."""
    merged: dict[str, Value] = dict(config)
    for name in NESTED:
        block = config.get(name)
        if isinstance(block, dict):
            merged |= flatten(block)
    return merged


def _integer(config: Mapping[str, Value], field: str) -> int | None:
    """The integer that the file holds for our field, or None. UserError where it is no number."""
    for name in NAMES[field]:
        value = config.get(name)
        if value is None or isinstance(value, bool):
            continue
        if isinstance(value, int | float):
            return int(value)
        if isinstance(value, str):
            try:
                return int(value)
            except ValueError:
                raise UserError(
                    f"{name} is {value!r}, not an integer", field=name, hint="write it as a number"
                ) from None
    return None


def _flag(config: Mapping[str, Value], *names: str) -> bool | None:
    for name in names:
        value = config.get(name)
        if isinstance(value, bool):
            return value
    return None


def _is_gated(config: Mapping[str, Value], assumed: list[str]) -> bool:
    """Whether feed-forward blocks multiply two products, from the activation's name."""
    stated = _flag(config, "swiglu", "gated_linear_unit")
    if stated is not None:
        return stated
    name = config.get("hidden_act") or config.get("activation") or config.get("activation_function")
    if isinstance(name, str):
        kind = str(config.get("model_type") or "")
        plain = name.startswith(("gelu", "relu")) and "gemma" not in kind
        return not plain or "glu" in name
    if "ffn_dim_multiplier" in config or "multiple_of" in config:
        return True
    if "n_embd" in config or "expansion_ratio" in config:
        return False
    assumed.append("gated feed-forward (no activation stated)")
    return True


def _sizes(flat: Mapping[str, Value]) -> dict[str, int | None]:
    """Every dimension the file states. Raises UserError naming required ones that it lacks."""
    found = {field: _integer(flat, field) for field in NAMES}
    missing = [field for field in REQUIRED if found[field] is None]
    if missing:
        keys = [NAMES[field][0] for field in missing]
        raise UserError(
            f"the model configuration lacks {', '.join(keys)}",
            field=keys[0],
            hint="known names: " + "; ".join("/".join(NAMES[field]) for field in missing),
        )
    return found


def _is_tied(flat: Mapping[str, Value], *, is_gated: bool, assumed: list[str]) -> bool:
    """Whether the head shares the embedding: as stated, else as usual for the kind of model."""
    tied = _flag(flat, "tie_word_embeddings", "share_embeddings_and_output_weights")
    untied = _flag(flat, "untie_embeddings_and_output_weights")
    if tied is not None:
        return tied
    if untied is not None:
        return not untied
    assumed.append("separate output head" if is_gated else "tied output head")
    return not is_gated


def _ffn_width(
    flat: Mapping[str, Value],
    stated: int | None,
    hidden: int,
    *,
    is_gated: bool,
    assumed: list[str],
) -> int:
    """Feed-forward width: as stated, by Llama's rule for gated blocks, else four times hidden."""
    if stated is not None:
        return stated
    ratio = flat.get("expansion_ratio")
    width = int(hidden * (float(ratio) if isinstance(ratio, int | float) else 4.0))
    if is_gated:
        width = _llama_ffn(hidden, flat)
    assumed.append(f"feed-forward width {width}")
    return width


def shape_from_config(config: Mapping[str, Value], *, name: str) -> ModelShape:
    """The shape of a configuration. Raises UserError naming the keys that cannot be assumed."""
    flat = flatten(config)
    found = _sizes(flat)
    hidden, layers, vocab = (found[field] or 0 for field in REQUIRED)
    assumed: list[str] = []
    heads = found["heads"]
    if heads is None:
        heads = max(1, hidden // 128)
        assumed.append(f"{heads} heads of 128 (no head count stated)")
    gated = _is_gated(flat, assumed)
    ffn = _ffn_width(flat, found["ffn"], hidden, is_gated=gated, assumed=assumed)
    tied = _is_tied(flat, is_gated=gated, assumed=assumed)
    experts = found["experts"] or 0
    experts = experts if experts > 1 else 0
    dense = (found["dense_layers"] or 0) if experts else layers
    if experts and not found["top_k"]:
        raise UserError(
            "the configuration has experts but no number of experts per token",
            field=NAMES["top_k"][0],
            hint="give one of " + ", ".join(NAMES["top_k"]),
        )
    return ModelShape(
        name=name,
        hidden=hidden,
        layers=layers,
        vocab=vocab,
        heads=heads,
        kv_heads=found["kv_heads"] or heads,
        head_dim=found["head_dim"] or (hidden // heads if heads else 0),
        attention_layers=layers,
        ffn=ffn,
        is_gated=gated,
        dense_layers=dense,
        is_tied=tied,
        has_biases=bool(_flag(flat, "use_bias", "bias")),
        has_qkv_bias=bool(_flag(flat, "attention_bias", "add_qkv_bias", "qkv_bias")),
        experts=experts,
        top_k=found["top_k"] or 0,
        expert_ffn=(found["expert_ffn"] or ffn) if experts else 0,
        shared_ffn=_shared_ffn(flat, found),
        moe_layers=layers - dense if experts else 0,
        q_rank=found["q_rank"] or 0,
        kv_rank=found["kv_rank"] or 0,
        nope_dim=found["nope_dim"] or 0,
        rope_dim=found["rope_dim"] or 0,
        v_dim=found["v_dim"] or 0,
        source="configuration file",
        assumed=tuple(assumed),
    )


def _shared_ffn(flat: Mapping[str, Value], found: Mapping[str, int | None]) -> int:
    stated = flat.get("shared_expert_intermediate_size") or flat.get(
        "moe_shared_expert_intermediate_size"
    )
    if isinstance(stated, int):
        return stated
    shared = flat.get("n_shared_experts")
    return shared * (found["expert_ffn"] or 0) if isinstance(shared, int) else 0


def _llama_ffn(hidden: int, flat: Mapping[str, Value]) -> int:
    """Llama's rule: 2/3 of 4 h times a multiplier, rounded up to a multiple."""
    width = int(8 * hidden / 3)
    multiplier = flat.get("ffn_dim_multiplier")
    if isinstance(multiplier, int | float):
        width = int(multiplier * width)
    multiple = flat.get("multiple_of")
    step = multiple if isinstance(multiple, int) and multiple > 0 else 256
    return step * ((width + step - 1) // step)
