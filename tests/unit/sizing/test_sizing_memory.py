from __future__ import annotations

import msgspec
import pytest

from tercio.errors import UserError
from tercio.sizing import architecture as arch
from tercio.sizing.catalogue import GIB, Catalogue
from tercio.sizing.memory import MemoryCase, fits, memory_parts, plan_memory, states_bytes
from tercio.sizing.train_plan import TrainPlan


def test_megatron_states_are_18_bytes_and_shard_by_zero_stage(catalogue: Catalogue) -> None:
    shape = catalogue.model("llama-3-8b")
    count = arch.parameter_count(shape)
    base = MemoryCase(shape=shape, seq=1.0)

    def per_param(sharding: str) -> float:
        case = msgspec.structs.replace(base, sharding=sharding, shards=8, expert_shards=8)
        return states_bytes(memory_parts(case)) / count

    assert states_bytes(memory_parts(base)) / count == pytest.approx(18.0)
    assert per_param("zero1") == pytest.approx(6 + 12 / 8)
    assert per_param("zero2") == pytest.approx(2 + 16 / 8)
    assert per_param("zero3") == pytest.approx(18 / 8)


@pytest.mark.parametrize(
    ("model", "weight_format", "measured_gb"),
    [
        ("meta-llama/Llama-2-7b", "bf16", 13.52),
        ("meta-llama/Llama-2-13b", "nf4", 8.32),
        ("codellama/CodeLlama-34b", "nf4-dq", 18.95),
    ],
)
def test_inference_peaks_are_within_3_percent(
    catalogue: Catalogue, model: str, weight_format: str, measured_gb: float
) -> None:
    case = MemoryCase(
        shape=catalogue.model(model), method="inference", profile="litgpt",
        weight_format=weight_format,
    )  # fmt: skip
    assert memory_parts(case).total_bytes / 1e9 == pytest.approx(measured_gb, rel=0.03)


def test_recompute_trades_activations_in_order(catalogue: Catalogue) -> None:
    plan = TrainPlan(gpus=64, seq=8192, micro_batch=1, sharding="zero1")
    shape = catalogue.model("llama-3-8b")
    kept = [
        plan_memory(shape, msgspec.structs.replace(plan, recompute=mode)).activations_bytes
        for mode in ("none", "selective", "full")
    ]
    assert kept == sorted(kept, reverse=True)
    assert kept[0] > 2 * kept[2]


def test_every_part_is_in_the_total(catalogue: Catalogue) -> None:
    parts = plan_memory(
        catalogue.model("deepseek-v3"),
        TrainPlan(gpus=256, seq=4096, micro_batch=1, microbatches=32, tp=2, pp=8, ep=8),
    )
    assert parts.total_bytes == sum(getattr(parts, f) for f in parts.__struct_fields__)
    assert all(getattr(parts, field) >= 0 for field in parts.__struct_fields__)


def test_moe_memory_counts_all_experts(catalogue: Catalogue) -> None:
    shape = catalogue.model("mixtral-8x7b")
    parts = memory_parts(MemoryCase(shape=shape, method="inference", seq=1))
    assert parts.weights_bytes == pytest.approx(2 * 46.70e9, rel=1e-3)


def test_qlora_fits_where_full_does_not(catalogue: Catalogue) -> None:
    shape, gpu = catalogue.model("llama-3-8b"), catalogue.gpu("RTX-4090")
    light = memory_parts(
        MemoryCase(
            shape=shape, method="qlora", profile="torchtune", weight_format="nf4-dq", seq=2048,
            recompute="full",
        )
    )  # fmt: skip
    full = memory_parts(MemoryCase(shape=shape, method="full", profile="torchtune",
                                   optimizer="adamw", seq=2048, recompute="full"))  # fmt: skip
    assert fits(light, gpu, gpus=1)
    assert not fits(full, gpu, gpus=1)
    assert full.total_bytes > 100 * GIB


def test_unknown_words_are_refused_with_the_known_ones(catalogue: Catalogue) -> None:
    shape = catalogue.model("llama-3-8b")
    with pytest.raises(UserError, match="method"):
        memory_parts(MemoryCase(shape=shape, method="prayer"))
    with pytest.raises(UserError, match="weight format"):
        memory_parts(MemoryCase(shape=shape, weight_format="nf5"))
