"""Active checks: what is wrong or slow is a problem, what cannot be measured says why."""

from __future__ import annotations

import pytest

from tercio.collect.burn import Measurement, measure
from tercio.collect.load_checks import load_checks


def gemm(*values: float, wrong: int | None = None) -> tuple[Measurement, ...]:
    return tuple(
        Measurement(name="gemm", device=index, value=value, is_right=index != wrong)
        for index, value in enumerate(values)
    )


def verdicts(found: tuple[Measurement, ...], why: str = "") -> list[tuple[str, str]]:
    return [(c.verdict, c.text) for c in load_checks(timeout_s=1.0, run=lambda: (found, why))]


def test_equal_devices_with_right_results_pass() -> None:
    first, memory, together = verdicts(gemm(610.0, 600.0, 605.0))
    assert first == ("ok", "600.0 TFLOP/s, right results")
    assert memory == together == ("skipped", "one device only")


def test_a_slow_device_and_a_wrong_result_are_problems() -> None:
    assert verdicts(gemm(610.0, 500.0, 605.0))[0] == ("problem", "GPU 1: 500.0 of 605.0 TFLOP/s")
    assert verdicts(gemm(610.0, 605.0, wrong=1))[0] == ("problem", "GPU 1: wrong result")


def test_a_child_that_hangs_is_a_problem_of_what_it_did_not_measure() -> None:
    first, memory, _ = verdicts(gemm(600.0), why="no end within 60s")
    assert first[0] == "ok"
    assert memory == ("problem", "it did not end: no end within 60s")


def test_without_a_gpu_the_reason_is_said() -> None:
    found, why = measure(timeout_s=100.0)
    assert why == ""
    if found[0].name != "skipped":
        pytest.skip("a GPU is here")
    assert found[0].text in ("PyTorch sees no GPU", "PyTorch is not installed for this Python")


def test_the_child_measures_and_checks_a_processor() -> None:
    pytest.importorskip("torch", reason="the measurements need PyTorch")
    found, why = measure(timeout_s=100.0, kind="cpu")
    assert why == ""
    assert [each.name for each in found] == ["gemm", "memory"]
    assert all(each.is_right and each.value > 0 for each in found)


def test_a_child_past_its_deadline_is_killed() -> None:
    found, why = measure(timeout_s=0.01, kind="cpu")
    assert (found, why) == ((), "no end within 0.01s")
