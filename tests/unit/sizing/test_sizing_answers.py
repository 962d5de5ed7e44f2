from __future__ import annotations

import msgspec
import pytest

from tercio.errors import UserError
from tercio.sizing.calibration import Calibration
from tercio.sizing.catalogue import Catalogue
from tercio.sizing.collectives import CollectiveFits
from tercio.sizing.cost import checkpoint_interval_s, device_price, goodput_ratio
from tercio.sizing.devices import ModelBlock, choose_devices, type_name
from tercio.sizing.finetune import FinetuneGoal, answer_finetune
from tercio.sizing.fit import FitCase, answer_fit
from tercio.sizing.kernels import GemmTable
from tercio.sizing.plan_serve import ServeGoal, plan_serve
from tercio.sizing.quantities import parse_count, parse_seconds
from tercio.sizing.serve import queueing_seconds


def test_fit_names_the_smallest_count(catalogue: Catalogue) -> None:
    case = FitCase(
        shape=catalogue.model("llama-3-70b"),
        method="full",
        gpu=catalogue.gpu("H100"),
        gpus=8,
        seq=2048,
    )
    answer = answer_fit(case)
    assert not answer.fits
    assert answer.smallest_gpus is not None
    assert answer_fit(msgspec.structs.replace(case, gpus=answer.smallest_gpus)).fits
    assert not answer_fit(msgspec.structs.replace(case, gpus=answer.smallest_gpus // 2)).fits
    assert f"optimizer takes most; it fits on {answer.smallest_gpus} x H100" in answer.change


def test_inference_of_a_wide_model_is_split_over_heads(catalogue: Catalogue) -> None:
    answer = answer_fit(
        FitCase(
            shape=catalogue.model("llama-3-70b"), method="inference", gpu=catalogue.gpu("H100"),
            gpus=2, seq=2048,
        )
    )  # fmt: skip
    assert answer.fits
    assert answer.smallest_gpus == 2


def test_finetune_is_cheapest_first_and_light_methods_scale(
    catalogue: Catalogue, kernels: GemmTable, fits: CollectiveFits, calibration: Calibration
) -> None:
    goal = FinetuneGoal(
        shape=catalogue.model("llama-3-8b"), method="qlora", seq=2048, tokens=1e8,
        gpus=(catalogue.gpu("L40S"), catalogue.gpu("H100")),
    )  # fmt: skip
    found = answer_finetune(catalogue, goal, kernels=kernels, fits=fits, model=calibration.train)
    costs = [answer.cost_usd or 0.0 for answer in found]
    assert costs == sorted(costs)
    by_count = {a.fit.gpus: a.tokens_per_s for a in found if a.fit.gpu == "L40S"}
    assert by_count[8] > 4 * by_count[1]
    assert all(a.tokens_per_s_low < a.tokens_per_s < a.tokens_per_s_high for a in found)


def test_nothing_fits_is_a_refusal(
    catalogue: Catalogue, kernels: GemmTable, fits: CollectiveFits, calibration: Calibration
) -> None:
    goal = FinetuneGoal(
        shape=catalogue.model("llama-3.1-405b"), method="full", seq=131072, micro_batch=64,
        gpus=(catalogue.gpu("T4"),),
    )  # fmt: skip
    with pytest.raises(UserError) as caught:
        answer_finetune(catalogue, goal, kernels=kernels, fits=fits, model=calibration.train)
    assert caught.value.code == "never_fits"


@pytest.fixture(scope="module")
def load(catalogue: Catalogue) -> ServeGoal:
    return ServeGoal(
        shape=catalogue.model("llama-3-70b"), isl=2000, osl=500, rps=20, ttft_s=1.0, tpot_s=0.04,
        gpus=(catalogue.gpu("H100"), catalogue.gpu("B200")),
    )  # fmt: skip


def test_serving_meets_its_limits_and_its_load(
    catalogue: Catalogue,
    kernels: GemmTable,
    fits: CollectiveFits,
    calibration: Calibration,
    load: ServeGoal,
) -> None:
    found = plan_serve(catalogue, load, kernels=kernels, fits=fits, model=calibration.serve)
    for answer in found:
        assert answer.tpot_s <= load.tpot_s
        assert answer.ttft_compute_s + answer.ttft_wait_s <= load.ttft_s
        assert answer.goodput_rps >= load.rps
        assert answer.batch * answer.cache_sequence_bytes <= answer.cache_pool_bytes
        assert answer.gpus == answer.replicas * answer.tp
        assert sum(answer.parts_s.values()) == pytest.approx(answer.tpot_s)
    assert len({(a.gpu, a.precision) for a in found}) == len(found)


def test_twice_the_load_needs_about_twice_the_replicas(
    catalogue: Catalogue,
    kernels: GemmTable,
    fits: CollectiveFits,
    calibration: Calibration,
    load: ServeGoal,
) -> None:
    def devices(rps: float) -> int:
        goal = msgspec.structs.replace(load, rps=rps, gpus=load.gpus[:1], precision="fp8")
        found = plan_serve(catalogue, goal, kernels=kernels, fits=fits, model=calibration.serve)
        return found[0].gpus

    assert devices(80) == pytest.approx(4 * devices(20), rel=0.15)


def test_an_unreachable_limit_names_the_best_reached(
    catalogue: Catalogue,
    kernels: GemmTable,
    fits: CollectiveFits,
    calibration: Calibration,
    load: ServeGoal,
) -> None:
    goal = msgspec.structs.replace(load, tpot_s=0.0005)
    with pytest.raises(UserError, match="no layout meets") as caught:
        plan_serve(catalogue, goal, kernels=kernels, fits=fits, model=calibration.serve)
    assert caught.value.code == "infeasible"
    assert "ms per token" in (caught.value.hint or "")


def test_waiting_grows_without_bound_at_full_load() -> None:
    waits = [queueing_seconds(load=load, service_s=1.0, servers=1.0) for load in (0.1, 0.5, 0.9)]
    assert waits == sorted(waits)
    assert waits[1] == pytest.approx(1.0)
    assert queueing_seconds(load=1.0, service_s=1.0, servers=1.0) == float("inf")


def test_goodput_falls_with_scale_and_matches_young(catalogue: Catalogue) -> None:
    assert goodput_ratio(8) > goodput_ratio(1024) > goodput_ratio(16_384) > 0.5
    assert checkpoint_interval_s(16_384) < checkpoint_interval_s(1024)
    assert device_price(catalogue, catalogue.gpu("K80"), gpus=8) is None


@pytest.mark.parametrize(
    ("text", "value"), [("1T", 1e12), ("2k", 2000.0), ("500", 500.0), ("$500k", 5e5)]
)
def test_counts(text: str, value: float) -> None:
    assert parse_count(text, field="tokens") == value


@pytest.mark.parametrize("text", ["", "-3", "0", "1Q", "many"])
def test_bad_counts_name_field_and_form(text: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_count(text, field="tokens")
    assert caught.value.field == "tokens"
    assert caught.value.hint


def test_durations() -> None:
    assert (parse_seconds("40ms", field="tpot"), parse_seconds("14d", field="deadline")) == (
        0.04, 1_209_600.0,
    )  # fmt: skip
    with pytest.raises(UserError, match="tpot"):
        parse_seconds("soon", field="tpot")


def test_auto_devices_are_requests_the_job_file_can_write(
    catalogue: Catalogue, kernels: GemmTable, fits: CollectiveFits, calibration: Calibration
) -> None:
    parts = (catalogue.gpu("H200"), catalogue.gpu("GB200"))
    block = ModelBlock(shape=catalogue.model("llama-3-70b"), method="pretrain", tokens=1e11)
    found = choose_devices(
        catalogue, block, parts, counts=(32, 64), kernels=kernels, fits=fits,
        calibration=calibration,
    )  # fmt: skip
    requests = {(choice.devices, choice.tasks) for choice in found}
    assert {("GB200:4", 16), ("H200:8", 8)} <= requests
    assert all(c.tasks * int(c.devices.rsplit(":")[-1]) == c.gpus for c in found)
    assert all((c.expected_low_s or 0) < (c.expected_s or 0) for c in found)
    assert type_name(catalogue, catalogue.gpu("A100-80GB")) == "A100-80GB"


def test_auto_devices_for_a_fine_tune_offer_the_smallest(
    catalogue: Catalogue, kernels: GemmTable, fits: CollectiveFits, calibration: Calibration
) -> None:
    block = ModelBlock(shape=catalogue.model("llama-3-8b"), method="qlora")
    found = choose_devices(
        catalogue, block, (catalogue.gpu("L40S"),), counts=(1, 2, 4), kernels=kernels, fits=fits,
        calibration=calibration,
    )  # fmt: skip
    assert [(c.devices, c.tasks) for c in found] == [("L40S:1", 1)]
    assert found[0].expected_s is None
    full = ModelBlock(shape=catalogue.model("llama-3-70b"), method="full")
    with pytest.raises(UserError, match="more than 4 devices") as caught:
        choose_devices(
            catalogue, full, (catalogue.gpu("H100"),), counts=(1, 4), kernels=kernels, fits=fits,
            calibration=calibration,
        )  # fmt: skip
    assert caught.value.code == "never_fits"
