"""Serving loads that are not plain: cached prefixes, drafts, uneven experts, pools, traces."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercio.errors import UserError
from tercio.sizing.calibration import Calibration
from tercio.sizing.catalogue import Catalogue
from tercio.sizing.collectives import CollectiveFits
from tercio.sizing.kernels import GemmTable
from tercio.sizing.lengths import read_lengths
from tercio.sizing.plan_serve import ServeAnswer, ServeGoal, plan_serve
from tercio.sizing.serve import ServeCase, decode_work, prompt_work, queueing_seconds
from tercio.sizing.train import gemm_timer


@pytest.fixture(scope="module")
def case(catalogue: Catalogue) -> ServeCase:
    return ServeCase(
        shape=catalogue.model("llama-3-70b"), gpu=catalogue.gpu("H100"), isl=2000, osl=500,
        concurrency=16, tp=4, precision="fp8",
    )  # fmt: skip


@given(q=st.floats(0, 0.999), g=st.integers(0, 16))
def test_tokens_of_a_step_are_the_accepted_drafts_and_one(q: float, g: int) -> None:
    plain = msgspec.structs.replace(EMPTY, drafts=g, accept_ratio=q)
    # The sum of the probabilities that the first i drafts are all accepted.
    assert plain.tokens_per_step == pytest.approx(sum(q**i for i in range(g + 1)))


EMPTY = ServeCase(shape=None, gpu=None, isl=1, osl=1, concurrency=1)  # type: ignore[arg-type]


def test_all_drafts_accepted_is_the_limit() -> None:
    assert msgspec.structs.replace(EMPTY, drafts=4, accept_ratio=1.0).tokens_per_step == 5.0


def test_a_cached_prefix_is_not_computed_but_attended(
    case: ServeCase, kernels: GemmTable, fits: CollectiveFits
) -> None:
    time = gemm_timer(kernels, case.gpu)
    half = msgspec.structs.replace(case, prefix_hit_ratio=0.5)
    cold, warm = (decode_work(c, time=time, fits=fits) for c in (case, half))
    assert warm.prefill_s == pytest.approx(0.5 * cold.prefill_s)
    assert (warm.gemm_s, warm.cache_s) == (cold.gemm_s, cold.cache_s)
    cold_prompt, warm_prompt = (prompt_work(c, time=time, fits=fits) for c in (case, half))
    assert warm_prompt.gemm_s < 0.6 * cold_prompt.gemm_s
    # Of all pairs of a causal prompt the second half of its tokens has three quarters.
    assert warm_prompt.attention_s == pytest.approx(0.75 * cold_prompt.attention_s)


def test_drafts_share_the_reading_of_weights_and_cache(
    case: ServeCase, kernels: GemmTable, fits: CollectiveFits
) -> None:
    time = gemm_timer(kernels, case.gpu)
    few = msgspec.structs.replace(case, concurrency=1.0)
    drafted = msgspec.structs.replace(few, drafts=3, accept_ratio=0.8, draft_cost_ratio=0.0)
    plain, fast = (decode_work(c, time=time, fits=fits) for c in (few, drafted))
    assert fast.cache_s == pytest.approx(plain.cache_s / drafted.tokens_per_step)
    assert fast.gemm_s < 0.5 * plain.gemm_s
    assert fast.prefill_s == plain.prefill_s
    useless = msgspec.structs.replace(few, drafts=3, accept_ratio=0.0, draft_cost_ratio=0.1)
    assert decode_work(useless, time=time, fits=fits).cache_s == pytest.approx(1.3 * plain.cache_s)


def test_uneven_experts_cost_only_where_experts_are_spread(
    catalogue: Catalogue, kernels: GemmTable, fits: CollectiveFits
) -> None:
    base = ServeCase(
        shape=catalogue.model("deepseek-v3"), gpu=catalogue.gpu("B200"), isl=4000, osl=1000,
        concurrency=1024, attention_dp=8, moe_ep=8, precision="fp8",
    )  # fmt: skip
    time = gemm_timer(kernels, base.gpu)
    for spread, is_slower in ((base, True), (msgspec.structs.replace(
        base, attention_dp=1, moe_ep=1, tp=8, moe_tp=8), False)):  # fmt: skip
        uneven = msgspec.structs.replace(spread, expert_imbalance=2.0)
        even_s, uneven_s = (
            decode_work(c, time=time, fits=fits).prefill_s for c in (spread, uneven)
        )
        assert (uneven_s > 1.1 * even_s) is is_slower


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prefix_hit_ratio", 1.5), ("prefix_hit_ratio", float("nan")), ("accept_ratio", -0.1),
        ("drafts", -1), ("expert_imbalance", 0.5), ("draft_cost_ratio", 2.0),
    ],
)  # fmt: skip
def test_nonsense_of_a_load_is_named(
    case: ServeCase, kernels: GemmTable, fits: CollectiveFits, field: str, value: float
) -> None:
    wrong = msgspec.structs.replace(case, **{field: value})
    with pytest.raises(UserError) as caught:
        decode_work(wrong, time=gemm_timer(kernels, case.gpu), fits=fits)
    assert caught.value.field == field
    assert caught.value.hint


def test_waiting_grows_with_the_spread_of_prompts() -> None:
    even, wild = (
        queueing_seconds(load=0.5, service_s=1.0, servers=1.0, cv=cv) for cv in (0.0, 3.0)
    )
    assert (even, wild) == (pytest.approx(0.5), pytest.approx(5.0))


@pytest.fixture(scope="module")
def goal(catalogue: Catalogue) -> ServeGoal:
    return ServeGoal(
        shape=catalogue.model("llama-3-70b"), isl=2000, osl=500, rps=20, ttft_s=1.0, tpot_s=0.04,
        gpus=(catalogue.gpu("H100"),), precision="fp8",
    )  # fmt: skip


@pytest.fixture
def answer(
    catalogue: Catalogue, kernels: GemmTable, fits: CollectiveFits, calibration: Calibration
):
    def ask(goal: ServeGoal) -> ServeAnswer:
        return plan_serve(catalogue, goal, kernels=kernels, fits=fits, model=calibration.serve)[0]

    return ask


def test_a_prefix_cache_needs_fewer_devices(answer, goal: ServeGoal) -> None:
    found = [
        answer(msgspec.structs.replace(goal, prefix_hit_ratio=hit)).gpus for hit in (0, 0.5, 0.9)
    ]
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1]


def test_pools_keep_the_limits_and_carry_the_load(answer, goal: ServeGoal) -> None:
    found = answer(msgspec.structs.replace(goal, is_disaggregated=True))
    pool = found.prefill
    assert pool is not None
    assert found.gpus == found.replicas * found.tp + pool.gpus
    assert pool.gpus == pool.replicas * pool.tp * pool.attention_dp
    assert found.ttft_compute_s + found.ttft_wait_s <= goal.ttft_s
    assert goal.rps * (found.ttft_compute_s - pool.transfer_s) <= 0.8 * pool.replicas + 1e-9
    assert found.goodput_rps >= goal.rps
    assert "prefill" not in {name for name, share in found.parts_s.items() if share > 0}
    # 2,000 tokens x 80 layers x 2 x 8 heads x 128 x 1 byte over 50 GB/s a device.
    moved = 2000 * 80 * 2 * 8 * 128 / (50e9 * pool.tp)
    assert pool.transfer_s == pytest.approx(moved, rel=0.05)


def test_a_model_too_big_for_one_domain_says_so(
    answer, catalogue: Catalogue, goal: ServeGoal
) -> None:
    big = msgspec.structs.replace(
        goal, shape=catalogue.model("llama-3.1-405b"), precision="bf16", ttft_s=10.0, tpot_s=0.5,
        rps=0.5,
    )  # fmt: skip
    assert "too big for one NVLink domain of 8" in answer(big).change
    assert answer(goal).change == ""


def mooncake(*rows: tuple[float, int, int, list[int]]) -> str:
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    return "\n".join(json.dumps(dict(zip(keys, row, strict=True))) for row in rows)


def test_a_trace_of_hashes_says_lengths_rates_and_prefix_hits() -> None:
    text = mooncake(
        (0, 1024, 10, [0, 1]), (30_000, 1024, 30, [0, 2]), (60_000, 1000, 20, [0, 2]),
        (120_000, 512, 20, [9]),
    )  # fmt: skip
    found = read_lengths(text, name="t")
    assert (found.requests, found.span_s, found.rps) == (4, 120.0, 4 / 120)
    assert found.peak_rps == 2 / 60
    assert (found.isl, found.osl) == (890.0, 20.0)
    # One block, then two of which the second is shorter than a block.
    assert found.prefix_hit_ratio == (512 + 1000) / 3560


def test_a_trace_of_columns_is_read_and_has_no_hits() -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,100,10\n2023-11-16 18:17:13.9799600,300,30\n"
    )
    found = read_lengths(text, name="t")
    assert (found.isl, found.osl, found.prompt_cv) == (200.0, 20.0, 0.5)
    assert found.span_s == pytest.approx(10.0)
    assert found.prefix_hit_ratio is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", "no column TIMESTAMP"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n", "line 2"),
        (mooncake((0, 1, 1, []), (1, 1, 1, [])) + "\n{}", "line 3"),
        (mooncake((0, 1, 1, [])), "too few"),
        (mooncake((0, -1, 1, []), (9, 1, 1, [])), "negative"),
        (mooncake((0, 1, 1, []), (0, 1, 1, [])), "no time passes"),
    ],
)
def test_a_broken_trace_is_named(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        read_lengths(text, name="t.csv")
    assert caught.value.field == "trace"
