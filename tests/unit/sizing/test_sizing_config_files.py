from __future__ import annotations

import pytest

from tercio.errors import UserError
from tercio.sizing import architecture as arch
from tercio.sizing.config_files import Value, shape_from_config

LLAMA: dict[str, Value] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 128256, "hidden_act": "silu",
    "tie_word_embeddings": False,
}  # fmt: skip


def test_hugging_face_config_gives_the_exact_count() -> None:
    shape = shape_from_config(LLAMA, name="x")
    assert arch.parameter_count(shape) == 8_030_261_248
    assert shape.assumed == ()


def test_megatron_arguments() -> None:
    shape = shape_from_config(
        {
            "num-layers": 32, "hidden-size": 4096, "num-attention-heads": 32,
            "num-query-groups": 8, "ffn-hidden-size": 14336, "vocab-size": 128256,
            "swiglu": True, "untie_embeddings_and_output_weights": True,
        },
        name="x",
    )  # fmt: skip
    assert arch.parameter_count(shape) == 8_030_261_248


def test_torchtitan_and_llm_foundry_blocks() -> None:
    titan = shape_from_config(
        {"model": {"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8,
                   "vocab_size": 128256, "ffn_dim_multiplier": 1.3, "multiple_of": 1024}},
        name="x",
    )  # fmt: skip
    assert titan.ffn == 14336
    foundry = shape_from_config(
        {"model": {"d_model": 768, "n_layers": 12, "n_heads": 12, "vocab_size": 50368,
                   "expansion_ratio": 4}},
        name="x",
    )  # fmt: skip
    assert (foundry.ffn, foundry.is_gated, foundry.is_tied) == (3072, False, True)


def test_experts_from_a_nested_text_config() -> None:
    shape = shape_from_config(
        {"text_config": {**LLAMA, "num_experts": 128, "num_experts_per_tok": 8,
                         "moe_intermediate_size": 768}},
        name="x",
    )  # fmt: skip
    assert (shape.experts, shape.top_k, shape.expert_ffn, shape.moe_layers) == (128, 8, 768, 32)


def test_missing_keys_are_named_together() -> None:
    with pytest.raises(UserError, match="hidden_size, vocab_size") as caught:
        shape_from_config({"num_hidden_layers": 3}, name="x")
    assert "d_model" in (caught.value.hint or "")


def test_what_is_assumed_is_said() -> None:
    shape = shape_from_config({"hidden_size": 1024, "num_layers": 4, "vocab_size": 1000}, name="x")
    assert len(shape.assumed) == 4
    assert any("8 heads" in text for text in shape.assumed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": "wide"}, "not an integer"),
        ({"num_hidden_layers": -2}, "layers is -2"),
        ({"num_key_value_heads": 7}, "not divisible"),
        ({"num_experts": 8}, "no number of experts per token"),
    ],
)
def test_nonsense_is_refused(change: dict[str, Value], message: str) -> None:
    with pytest.raises(UserError, match=message):
        shape_from_config({**LLAMA, **change}, name="x")
