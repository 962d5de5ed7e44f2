"""The workload model: what is learnt comes back in what is drawn."""

from __future__ import annotations

import msgspec
import pytest

from tercio.errors import UserError
from tercio.twin.fit import WorkloadModel, draw, fit, parse_team, read_model
from tercio.twin.trace import Trace, TraceJob

WEEKS = 8


def recorded() -> Trace:
    """Ten jobs an hour on the first day of each week, one an hour on the others."""
    jobs = []
    for hour in range(WEEKS * 168):
        count = 10 if hour % 168 < 24 else 1
        for n in range(count):
            is_large = n == 0
            jobs.append(
                TraceJob(
                    id=f"{hour}-{n}", submit_s=1000.0 + hour * 3600.0 + n * 300.0,
                    run_s=600.0 if is_large else 60.0, tasks=2 if is_large else 1,
                    devices_per_task=8 if is_large else 1, queue="big" if is_large else "small",
                    user="ana" if is_large else f"u{n}", limit_s=1200.0 if is_large else None,
                    end="failed" if is_large and hour % 4 == 0 else "ok",
                )
            )  # fmt: skip
    return Trace(jobs=tuple(jobs), source="log", kind="test")


def test_rates_shapes_times_and_ends_are_learnt() -> None:
    model = fit(recorded())
    assert len(model.arrivals_per_h) == 168
    assert model.arrivals_per_h[5] == pytest.approx(10.0, rel=0.01)
    assert model.arrivals_per_h[100] == pytest.approx(1.0, rel=0.01)
    assert model.unevenness == 0.0
    big, small = sorted(model.kinds, key=lambda kind: kind.queue)
    assert (big.tasks, big.devices_per_task, big.limit_ratio, big.users) == (
        2,
        8,
        2.0,
        {"ana": 1344},
    )
    assert big.failed_ratio == pytest.approx(0.25)
    assert small.run_s == (60.0,) * 21


def test_a_drawn_workload_has_the_recorded_load_and_pattern() -> None:
    source = recorded()
    drawn = draw(fit(source), seed=3)
    assert len(drawn.jobs) == pytest.approx(len(source.jobs), rel=0.08)
    first_day = sum((job.submit_s - 1000.0) / 3600 % 168 < 24 for job in drawn.jobs)
    assert first_day / len(drawn.jobs) == pytest.approx(240 / 384, abs=0.03)
    device_s = [sum(job.devices * job.run_s for job in one.jobs) for one in (source, drawn)]
    assert device_s[1] == pytest.approx(device_s[0], rel=0.15)
    assert {job.limit_s for job in drawn.jobs} == {None, 1200.0}


def test_draws_repeat_and_follow_load_and_length() -> None:
    model = fit(recorded())
    assert draw(model, seed=1) == draw(model, seed=1)
    assert draw(model, seed=1) != draw(model, seed=2)
    twice = draw(model, seed=1, load=2.0)
    assert len(twice.jobs) == pytest.approx(2 * len(recorded().jobs), rel=0.08)
    week = draw(model, seed=1, span_s=7 * 86400.0)
    assert week.jobs[-1].submit_s - model.start_s <= 7 * 86400.0


def test_uneven_hours_are_drawn_unevenly() -> None:
    jobs = [
        TraceJob(id=f"{hour}-{n}", submit_s=hour * 3600.0 + n, run_s=1.0)
        for hour in range(WEEKS * 168)
        for n in range(60 if hour % 7 == 0 else 1)
    ]
    model = fit(Trace(jobs=tuple(jobs), source="log", kind="test"))
    # 168 is a multiple of 7: all of the unevenness is in the hours of the week.
    assert model.unevenness == 0.0
    shifted = [msgspec.structs.replace(job, submit_s=job.submit_s * 1.013) for job in jobs]
    uneven = fit(Trace(jobs=tuple(shifted), source="log", kind="test"))
    assert uneven.unevenness > 0.5
    counts = [0] * (WEEKS * 168 + 100)
    for job in draw(uneven, seed=1).jobs:
        counts[int(job.submit_s / 3600)] += 1
    mean = sum(counts) / len(counts)
    assert sum((count - mean) ** 2 for count in counts) / len(counts) > 3 * mean


def test_a_new_team_comes_on_top() -> None:
    model = fit(recorded())
    drawn = draw(model, seed=1, teams=[parse_team("vision=big:0.5")])
    team = [job for job in drawn.jobs if job.queue == "vision"]
    assert len(team) == pytest.approx(1344 / 2, rel=0.15)
    assert {(job.tasks, job.devices_per_task) for job in team} == {(2, 8)}
    assert len({job.id for job in drawn.jobs}) == len(drawn.jobs)
    base = [job for job in drawn.jobs if job.queue != "vision"]
    assert base == list(draw(model, seed=1).jobs)
    with pytest.raises(UserError, match="bgi") as caught:
        draw(model, seed=1, teams=[parse_team("vision=bgi")])
    assert caught.value.hint == "did you mean 'big'?"


@pytest.mark.parametrize("text", ["vision", "=big", "v=big:0", "v=big:x", "v=big:1e9"])
def test_a_team_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="not a team"):
        parse_team(text)


def test_a_model_is_read_back_and_a_broken_one_refused() -> None:
    model = fit(recorded())
    body = msgspec.json.encode(model).decode()
    assert read_model(body, "m.json") == model
    for text in ("{}", "[]", body.replace('"kinds"', '"kind5"'), body[:-9]):
        with pytest.raises(UserError, match=r"m\.json: not a workload model"):
            read_model(text, "m.json")
    for broken in (
        msgspec.structs.replace(model, arrivals_per_h=()),
        msgspec.structs.replace(model, arrivals_per_h=(0.0,)),
        msgspec.structs.replace(model, kinds=()),
        msgspec.structs.replace(
            model, kinds=(msgspec.structs.replace(model.kinds[0], run_s=(1.0,)),)
        ),
    ):
        with pytest.raises(UserError, match=r"m\.json"):
            read_model(msgspec.json.encode(broken).decode(), "m.json")


def test_too_much_and_too_little_are_refused() -> None:
    model: WorkloadModel = fit(recorded())
    with pytest.raises(UserError, match="jobs"):
        draw(model, seed=1, load=1000.0, span_s=1e9)
    with pytest.raises(UserError, match="no job"):
        draw(model, seed=1, load=1e-9)
    at_once = Trace(jobs=recorded().jobs[:1], source="log", kind="test")
    with pytest.raises(UserError, match="one instant"):
        fit(at_once)
