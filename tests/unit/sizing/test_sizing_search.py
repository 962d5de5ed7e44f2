from __future__ import annotations

import msgspec
import pytest

from tercio.errors import UserError
from tercio.sizing.calibration import Calibration
from tercio.sizing.catalogue import Catalogue
from tercio.sizing.collectives import CollectiveFits
from tercio.sizing.kernels import GemmTable
from tercio.sizing.search import SearchResult, TrainGoal, search_train
from tercio.sizing.site import parse_site, with_site


@pytest.fixture(scope="module")
def goal(catalogue: Catalogue) -> TrainGoal:
    return TrainGoal(
        shape=catalogue.model("llama-3-70b"), tokens=1e12, seq=8192,
        gpus=(catalogue.gpu("H100"), catalogue.gpu("B200")), counts=(64, 256),
    )  # fmt: skip


def search(
    catalogue: Catalogue,
    kernels: GemmTable,
    fits: CollectiveFits,
    calibration: Calibration,
    goal: TrainGoal,
) -> SearchResult:
    return search_train(
        catalogue, goal, kernels=kernels, fits=fits, model=calibration.train,
        calibration_date=calibration.date,
    )  # fmt: skip


def test_every_answer_fits_is_ranged_and_adds_up(
    catalogue: Catalogue,
    kernels: GemmTable,
    fits: CollectiveFits,
    calibration: Calibration,
    goal: TrainGoal,
) -> None:
    result = search(catalogue, kernels, fits, calibration, goal)
    assert {(c.gpu, c.plan.gpus) for c in result.candidates} == {
        ("H100-SXM5-80GB", 64), ("H100-SXM5-80GB", 256),
        ("B200-SXM-180GB", 64), ("B200-SXM-180GB", 256),
    }  # fmt: skip
    for found in result.candidates:
        assert found.memory_total_bytes <= found.usable_bytes
        assert found.step_low_s < found.step_s < found.step_high_s
        assert sum(found.parts_s.values()) == pytest.approx(found.step_s)
        assert 0.1 < found.mfu_ratio < 0.75
        assert found.cost_usd == pytest.approx(
            found.gpu_hours * (found.price.usd_h if found.price else 0.0)
        )
    costs = [c.cost_usd for c in result.candidates]
    assert costs == sorted(costs, key=lambda usd: usd or 0.0)


def test_a_deadline_puts_those_that_meet_it_first(
    catalogue: Catalogue,
    kernels: GemmTable,
    fits: CollectiveFits,
    calibration: Calibration,
    goal: TrainGoal,
) -> None:
    soon = msgspec.structs.replace(goal, deadline_s=20 * 86_400.0)
    days = [c.days for c in search(catalogue, kernels, fits, calibration, soon).candidates]
    assert days[0] <= 20 < days[-1]


def test_more_devices_are_faster_and_never_cheaper_per_token(
    catalogue: Catalogue,
    kernels: GemmTable,
    fits: CollectiveFits,
    calibration: Calibration,
    goal: TrainGoal,
) -> None:
    found = search(catalogue, kernels, fits, calibration, goal).candidates
    by_count = {c.plan.gpus: c for c in found if c.gpu.startswith("H100")}
    assert by_count[256].days < by_count[64].days


def test_ten_trillion_parameters_on_one_t4_are_refused_with_the_gap(
    catalogue: Catalogue,
    kernels: GemmTable,
    fits: CollectiveFits,
    calibration: Calibration,
    goal: TrainGoal,
) -> None:
    huge = msgspec.structs.replace(
        goal, gpus=(catalogue.gpu("T4"),), counts=(1,),
        shape=msgspec.structs.replace(goal.shape, hidden=65536, layers=190, ffn=262144, heads=512,
                                      kv_heads=512, head_dim=128, attention_layers=190,
                                      dense_layers=190),
    )  # fmt: skip
    with pytest.raises(UserError, match="states alone take") as caught:
        search(catalogue, kernels, fits, calibration, huge)
    assert caught.value.code == "never_fits"
    assert "T4" in (caught.value.hint or "")


def test_site_prices_go_before_published_ones(
    catalogue: Catalogue,
    kernels: GemmTable,
    fits: CollectiveFits,
    calibration: Calibration,
    goal: TrainGoal,
) -> None:
    ours = with_site(catalogue, parse_site({"date": "2026-12-01", "prices": {"H100": 1.0}}))
    found = search(ours, kernels, fits, calibration, goal).candidates
    h100 = next(c for c in found if c.gpu.startswith("H100"))
    assert h100.price is not None
    assert (h100.price.usd_h, h100.price.provider) == (1.0, "site")


@pytest.mark.parametrize(
    ("site", "field"),
    [
        ({"gpus": {"X1": {"memory_gb": 80, "mem_bw_gb_s": 0}}}, "gpus.X1.mem_bw_gb_s"),
        ({"gpus": {"X1": {}}}, "gpus.X1.memory_gb"),
        ({"prices": {"H100": -1}}, "prices.H100"),
    ],
)
def test_nonsense_in_a_site_file_names_its_field(
    catalogue: Catalogue, site: dict[str, object], field: str
) -> None:
    with pytest.raises(UserError) as caught:
        with_site(catalogue, parse_site(site))
    assert caught.value.field == field


def test_a_site_part_like_another_is_sized(
    catalogue: Catalogue,
    kernels: GemmTable,
    fits: CollectiveFits,
    calibration: Calibration,
    goal: TrainGoal,
) -> None:
    ours = with_site(
        catalogue,
        parse_site({"gpus": {"H100-96": {"like": "H100", "memory_gb": 96, "tdp_w": 500}}}),
    )
    small = msgspec.structs.replace(goal, gpus=(ours.gpu("H100-96"),), counts=(64,))
    best = search(ours, kernels, fits, calibration, small).candidates[0]
    assert best.price is None
    assert best.cost_usd is None
    assert best.basis == "roofline"
    known = search(catalogue, kernels, fits, calibration, goal).candidates
    measured = next(c for c in known if c.gpu.startswith("H100") and c.plan.gpus == 64)
    assert best.days_high / best.days > measured.days_high / measured.days
