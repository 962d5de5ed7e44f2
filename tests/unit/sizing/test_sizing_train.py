from __future__ import annotations

import msgspec
import pytest

from tercio.errors import UserError
from tercio.sizing.catalogue import Catalogue
from tercio.sizing.collectives import CollectiveFits
from tercio.sizing.kernels import GemmTable
from tercio.sizing.train import StepWork, gemm_timer, step_work
from tercio.sizing.train_plan import TrainPlan, check_plan


def work_of(
    catalogue: Catalogue, kernels: GemmTable, fits: CollectiveFits, model: str, **plan: object
) -> StepWork:
    gpu = catalogue.gpu("H100")
    made = msgspec.convert({"gpus": 64, "seq": 4096, "micro_batch": 1.0, **plan}, TrainPlan)
    return step_work(catalogue.model(model), gpu, made, time=gemm_timer(kernels, gpu), fits=fits)


def test_full_recompute_adds_one_forward(
    catalogue: Catalogue, kernels: GemmTable, fits: CollectiveFits
) -> None:
    plain = work_of(catalogue, kernels, fits, "llama-3-8b")
    again = work_of(catalogue, kernels, fits, "llama-3-8b", recompute="full")
    assert again.dense_s / plain.dense_s == pytest.approx(4 / 3, rel=0.05)
    assert again.model_flops == plain.model_flops


def test_bubble_shrinks_with_microbatches_and_interleaving(
    catalogue: Catalogue, kernels: GemmTable, fits: CollectiveFits
) -> None:
    def bubble(count: int, virtual: int) -> float:
        return work_of(
            catalogue, kernels, fits, "llama-3-70b", tp=8, pp=8, microbatches=count,
            virtual_stages=virtual,
        ).bubble_ratio  # fmt: skip

    assert bubble(14, 1) == pytest.approx(0.5)
    assert bubble(28, 1) == bubble(14, 2) == pytest.approx(0.25)


def test_communication_appears_only_where_the_plan_has_it(
    catalogue: Catalogue, kernels: GemmTable, fits: CollectiveFits
) -> None:
    dense = work_of(catalogue, kernels, fits, "llama-3-8b", sharding="zero3")
    assert dense.tensor_s == dense.expert_move_s == dense.context_s == dense.pipeline_s == 0
    assert dense.weight_gather_s > 0
    routed = work_of(catalogue, kernels, fits, "qwen3-30b-a3b", ep=8, tp=2, cp=2)
    assert min(routed.tensor_s, routed.expert_move_s, routed.context_s, routed.expert_s) > 0


def test_lora_skips_weight_gradients(
    catalogue: Catalogue, kernels: GemmTable, fits: CollectiveFits
) -> None:
    full = work_of(catalogue, kernels, fits, "llama-3-8b")
    light = work_of(catalogue, kernels, fits, "llama-3-8b", is_lora=True)
    assert light.dense_s / full.dense_s == pytest.approx(2 / 3, rel=0.05)
    assert light.gradient_sync_s < 0.1 * full.gradient_sync_s


@pytest.mark.parametrize(
    ("plan", "field"),
    [
        ({"tp": 3}, "gpus"),
        ({"gpus": 96, "tp": 3}, "tp"),
        ({"gpus": 64, "pp": 64}, "pp"),
        ({"precision": "fp2"}, "precision"),
    ],
)
def test_impossible_plans_name_the_rule(
    catalogue: Catalogue, plan: dict[str, object], field: str
) -> None:
    made = msgspec.convert({"gpus": 64, "seq": 4096, "micro_batch": 1.0, **plan}, TrainPlan)
    with pytest.raises(UserError) as caught:
        check_plan(catalogue.model("llama-3-8b"), made)
    assert caught.value.field == field
