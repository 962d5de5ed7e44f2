"""The waterfall adds up to the millisecond, and each class means what it says."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tercio.health.goodput import (
    Attempt,
    CheckpointMark,
    Span,
    TimeClass,
    Waterfall,
    add_waterfalls,
    job_waterfall,
    span_ms,
)

BASE = Attempt(number=1, milli_devices=8000, allocated_s=0, released_s=1000, running_s=100)


def classes(*attempts: Attempt, finally_failed: bool = False) -> dict[str, int]:
    """Device-seconds by class, without the empty ones."""
    got = job_waterfall(attempts, finally_failed=finally_failed)
    assert sum(got.classes().values()) == got.allocated_ms
    return {name.value: ms // 1000 for name, ms in got.classes().items() if ms}


def but(**changes: object) -> Attempt:
    return msgspec.structs.replace(BASE, **changes)


def test_plain_run_is_starting_then_useful() -> None:
    assert classes(BASE) == {"starting": 800, "useful": 7200}


def test_first_step_mark_ends_the_start_where_steps_are_marked() -> None:
    assert classes(but(step_marks_s=(300, 400)))["starting"] == 2400


def test_second_attempt_is_restarting() -> None:
    assert classes(but(number=2)) == {"restarting": 800, "useful": 7200}


def test_attempt_that_never_ran_is_all_starting() -> None:
    assert classes(but(running_s=None), finally_failed=True) == {"starting": 8000}


def test_stopping_runs_from_the_order_to_the_release() -> None:
    assert classes(but(stop_ordered_s=900))["stopping"] == 800


def test_lost_work_begins_after_the_last_durable_checkpoint() -> None:
    marks = (
        CheckpointMark(start_s=190, end_s=200),
        CheckpointMark(start_s=690, end_s=700),
        CheckpointMark(start_s=890, end_s=900, is_durable=False),
    )
    got = classes(but(checkpoints=marks, ended_badly=True))
    assert got == {"starting": 800, "checkpoint": 240, "lost": 2320, "useful": 4640}


def test_without_a_checkpoint_all_work_of_a_bad_end_is_lost() -> None:
    assert classes(but(ended_badly=True)) == {"starting": 800, "lost": 7200}


def test_hang_counts_from_the_last_progress() -> None:
    got = classes(but(hung=Span(start_s=400, end_s=1000), ended_badly=True))
    assert got == {"starting": 800, "hung": 4800, "lost": 2400}


def test_finally_failed_job_has_no_useful_time() -> None:
    got = classes(but(checkpoints=(CheckpointMark(start_s=190, end_s=200),)), finally_failed=True)
    assert "useful" not in got
    assert got["failed"] == 7120


def test_idle_needs_a_minute_without_a_step() -> None:
    seen = (Span(start_s=0, end_s=1000),)
    low = (Span(start_s=200, end_s=259), Span(start_s=400, end_s=520))
    got = classes(but(low_utilization=low, telemetry=seen))
    assert got["idle"] == 120 * 8
    stepped = but(low_utilization=low, telemetry=seen, step_marks_s=(100, 460.5, 519))
    assert classes(stepped)["idle"] == 60 * 8 + 4


def test_idle_without_telemetry_is_unknown_and_not_zero() -> None:
    got = job_waterfall([BASE], finally_failed=False)
    assert got.idle_ms is None
    assert got.unobserved_ms == got.useful_ms
    half = but(telemetry=(Span(start_s=0, end_s=550),))
    partly = job_waterfall([half], finally_failed=False)
    assert (partly.idle_ms, partly.unobserved_ms) == (0, 450 * 8000)


def test_half_a_device_counts_half() -> None:
    assert classes(but(milli_devices=500)) == {"starting": 50, "useful": 450}


def test_queued_time_stands_outside() -> None:
    got = job_waterfall([BASE], finally_failed=False, queued_ms=123)
    assert (got.queued_ms, got.allocated_ms) == (123, 8_000_000)


TIMES = st.floats(0, 2000)
SPANS = st.builds(lambda a, b: Span(start_s=min(a, b), end_s=max(a, b)), TIMES, TIMES)
ATTEMPTS = st.builds(
    Attempt,
    number=st.integers(1, 5),
    milli_devices=st.integers(1, 20_000),
    allocated_s=TIMES,
    released_s=TIMES,
    running_s=st.none() | TIMES,
    step_marks_s=st.none() | st.lists(TIMES, max_size=6).map(tuple),
    stop_ordered_s=st.none() | TIMES,
    checkpoints=st.lists(
        st.builds(CheckpointMark, start_s=TIMES, end_s=TIMES, is_durable=st.booleans()), max_size=4
    ).map(tuple),
    hung=st.none() | SPANS,
    ended_badly=st.booleans(),
    low_utilization=st.lists(SPANS, max_size=4).map(tuple),
    telemetry=st.lists(SPANS, max_size=4).map(tuple),
)


@given(st.lists(ATTEMPTS, max_size=5), st.booleans())
def test_allocated_is_exactly_the_sum_of_the_classes(
    attempts: list[Attempt], finally_failed: bool
) -> None:
    got = job_waterfall(attempts, finally_failed=finally_failed)
    assert sum(got.classes().values()) == got.allocated_ms
    held = sum(span_ms(a.allocated_s, a.released_s) * a.milli_devices for a in attempts)
    assert got.allocated_ms == held // 1000
    assert min(got.classes().values()) >= 0
    assert got.unobserved_ms <= got.useful_ms
    if finally_failed:
        assert got.classes()[TimeClass.USEFUL] <= 1  # the rounding of thousandths, if anything


@given(st.lists(ATTEMPTS, max_size=5))
def test_a_week_of_jobs_adds_up(attempts: list[Attempt]) -> None:
    jobs: list[Waterfall] = [job_waterfall([a], finally_failed=False) for a in attempts]
    total = add_waterfalls(jobs)
    assert total.allocated_ms == sum(j.allocated_ms for j in jobs)
    assert sum(total.classes().values()) == total.allocated_ms
