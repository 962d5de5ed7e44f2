"""A job followed by its marks: slow ranks, hangs, and what must not look like one."""

from __future__ import annotations

import pytest

from tercio.health.hang import HangRule, Phase
from tercio.health.marks import Mark, parse_mark
from tercio.health.progress import JobProgress
from tercio.health.straggler import StragglerRule

RULE = HangRule(ratio=5.0, floor_s=30.0)


def follow(ranks: int = 4) -> JobProgress:
    return JobProgress(dict.fromkeys(range(ranks), "0"), started_s=0.0, rule=StragglerRule())


def steps(
    job: JobProgress, ranks: int, first: int, last: int, *, slow: dict[int, float] | None = None
) -> None:
    """All ranks end step n at n seconds; a slow one computes for longer in it."""
    for number in range(first, last + 1):
        job.note(
            {
                rank: [
                    Mark(
                        at_s=float(number), phase=Phase.STEP, step=number,
                        own_s=0.5 * (slow or {}).get(rank, 1.0),
                    )
                ]
                for rank in range(ranks)
            }
        )  # fmt: skip


def test_a_line_is_a_mark_or_nothing() -> None:
    step = parse_mark("10.5 step 3 own 0.25")
    assert step == Mark(at_s=10.5, phase=Phase.STEP, step=3, own_s=0.25)
    assert parse_mark("10.5 step") == Mark(at_s=10.5, phase=Phase.STEP)
    assert parse_mark("11 eval begin") == Mark(at_s=11.0, phase=Phase.EVAL, is_begin=True)
    for line in ("", "step 1", "nan step 1", "-1 step 1", "1 dance", "1 checkpoint", "1e999 step"):
        assert parse_mark(line) is None


def test_a_rank_with_a_slow_device_is_found_and_recovers() -> None:
    job = follow()
    steps(job, 4, 1, 40, slow={2: 1.2})
    assert list(job.slow) == [2]
    assert job.slow[2].ratio == pytest.approx(1.2)
    steps(job, 4, 41, 60)
    assert not job.slow


def test_ranks_of_different_stages_are_not_compared() -> None:
    job = JobProgress({0: "a", 1: "a", 2: "b", 3: "b"}, started_s=0.0, rule=StragglerRule())
    steps(job, 4, 1, 80, slow={2: 2.0, 3: 2.0})
    assert not job.slow


def test_a_silent_rank_does_not_stop_the_comparison_of_the_others() -> None:
    job = follow(5)
    steps(job, 4, 1, 200, slow={1: 1.3})
    assert list(job.slow) == [1]


def test_silence_is_a_hang_after_its_limit_and_names_the_rank_that_is_behind() -> None:
    job = follow()
    steps(job, 4, 1, 50)
    job.note({rank: [Mark(at_s=51.0, phase=Phase.STEP, step=51)] for rank in (0, 1, 3)})
    assert job.hang(81.0, RULE) is None
    hang = job.hang(81.5, RULE)
    assert hang is not None
    assert (hang.last_progress_s, hang.limit_s, hang.phase) == (51.0, 30.0, Phase.STEP)
    assert hang.ranks == (2,)


def test_a_long_save_of_one_rank_is_no_hang() -> None:
    job = follow()
    steps(job, 4, 1, 50)
    job.note({0: [Mark(at_s=51.0, phase=Phase.CHECKPOINT, is_begin=True)]})
    job.note({1: [Mark(at_s=51.5, phase=Phase.STEP, step=51)]})
    assert job.hang(1000.0, RULE) is None
    job.note({0: [Mark(at_s=1001.0, phase=Phase.CHECKPOINT)]})
    assert job.hang(1030.0, RULE) is None
    assert job.hang(1032.0, RULE) is not None


def test_a_paused_job_begins_its_silence_anew() -> None:
    job = follow()
    steps(job, 4, 1, 50)
    job.pause(500.0)
    assert job.hang(520.0, RULE) is None
    assert job.hang(531.0, RULE) is not None


def test_before_anything_was_learned_the_limit_is_that_of_loading() -> None:
    job = follow()
    assert job.hang(1800.0, RULE) is None
    assert job.hang(1801.0, RULE) is not None
