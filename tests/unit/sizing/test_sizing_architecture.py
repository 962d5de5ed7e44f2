from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercio.errors import UserError
from tercio.sizing import architecture as arch
from tercio.sizing.architecture import ModelShape
from tercio.sizing.catalogue import Catalogue

PUBLISHED = {
    "meta-llama/Meta-Llama-3-8B": 8_030_261_248,
    "meta-llama/Meta-Llama-3-70B": 70_553_706_496,
    "meta-llama/Meta-Llama-3.1-405B": 405_853_388_800,
    "meta-llama/Llama-2-7b": 6_738_415_616,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "Qwen/Qwen3-235B-A22B": 235_093_634_560,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "openai/gpt-oss-20b": 20_914_757_184,
    "openai/gpt-oss-120b": 116_829_156_672,
    "openai-community/gpt2": 124_439_808,
    "google/gemma-2b": 2_506_172_416,
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": 31_577_937_344,
}


@pytest.mark.parametrize(("name", "total"), PUBLISHED.items())
def test_counts_equal_the_published_totals(catalogue: Catalogue, name: str, total: int) -> None:
    assert arch.parameter_count(catalogue.model(name)) == total


def test_deepseek_v3_has_671_billion_and_37_active(catalogue: Catalogue) -> None:
    shape = catalogue.model("deepseek-v3")
    assert arch.parameter_count(shape) == pytest.approx(671.03e9, rel=1e-4)
    assert arch.active_parameter_count(shape) == pytest.approx(37.55e9, rel=1e-3)


def test_cache_of_grouped_latent_and_windowed_attention(catalogue: Catalogue) -> None:
    llama = arch.kv_bytes(catalogue.model("llama-3-70b"), tokens=1, element_bytes=2)
    deepseek = arch.kv_bytes(catalogue.model("deepseek-v3"), tokens=1, element_bytes=2)
    assert (llama, deepseek) == (327_680, 70_272)
    windowed = catalogue.model("gpt-oss-120b")
    assert arch.kv_bytes(windowed, tokens=10_000, element_bytes=2) == 2 * 8 * 64 * 2 * (
        18 * 10_000 + 18 * 128
    )


def test_training_flops_follow_the_palm_formula(catalogue: Catalogue) -> None:
    shape = catalogue.model("mpt-7b")
    expected = 6 * arch.matmul_params(shape) + 12 * 32 * 4096 * 2048
    assert arch.training_flops_per_token(shape, tokens=2048) == pytest.approx(expected)


@given(
    hidden=st.integers(1, 64),
    layers=st.integers(1, 8),
    experts=st.integers(2, 16),
    data=st.data(),
)
def test_active_parameters_never_exceed_all(
    hidden: int, layers: int, experts: int, data: st.DataObject
) -> None:
    top_k = data.draw(st.integers(1, experts))
    shape = ModelShape(
        name="x", hidden=hidden, layers=layers, vocab=100, heads=2, kv_heads=1, head_dim=4,
        attention_layers=layers, experts=experts, top_k=top_k, expert_ffn=8, moe_layers=layers,
    )  # fmt: skip
    active, total = arch.active_parameter_count(shape), arch.parameter_count(shape)
    assert active <= total
    assert (active == total) == (top_k == experts)


@pytest.mark.parametrize(
    ("field", "value"), [("layers", -3), ("hidden", 0), ("vocab", 0), ("experts", -1)]
)
def test_nonsense_dimensions_are_refused_by_name(field: str, value: int) -> None:
    fields = {"name": "x", "hidden": 8, "layers": 2, "vocab": 10, field: value}
    with pytest.raises(UserError, match=field) as caught:
        ModelShape(**fields)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(UserError, match="not divisible"):
        ModelShape(name="x", hidden=8, layers=1, vocab=1, heads=7, kv_heads=2)
