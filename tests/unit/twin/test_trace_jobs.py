"""Jobs of a trace as they were: parts of devices, and how they ended."""

from __future__ import annotations

import json

import pytest

from tercio.formats.cluster import read_cluster
from tercio.twin.fit import fit
from tercio.twin.policies import built_in
from tercio.twin.replay import run
from tercio.twin.trace import Trace, TraceJob

ONE = read_cluster("1x1")


def trace_of(*jobs: TraceJob) -> Trace:
    return Trace(jobs=jobs, source="t", kind="t")


def part(name: str, submit_s: float, milli: int, **more) -> TraceJob:
    return TraceJob(
        id=name, submit_s=submit_s, run_s=100.0, devices_per_task=0, share_milli=milli, **more
    )


def replay(*jobs: TraceJob, policy: str = "fifo"):
    return run(trace_of(*jobs), ONE, built_in(policy, jobs))


def test_jobs_share_a_device_as_they_did():
    result = replay(part("a", 0.0, 400), part("b", 1.0, 600), part("c", 2.0, 500))
    assert [job.start_s for job in result.jobs] == [0.0, 1.0, 101.0]
    assert [job.devices for job in result.jobs] == [0.4, 0.6, 0.5]
    assert not result.warnings
    held = result.course.integral(result.course.devices_used, 1000.0)
    assert held == pytest.approx(100 * (0.4 + 0.6 + 0.5))


def test_a_share_of_memory_is_asked_for_as_such():
    half = part("a", 0.0, 500, share_memory_bytes=30 << 30)
    small = part("b", 1.0, 500, share_memory_bytes=20 << 30)
    assert [job.start_s for job in replay(half, small, half).jobs] == [0.0, 1.0, 100.0]


@pytest.mark.parametrize("policy", ["srtf", "las2d", "multifactor"])
def test_a_policy_that_knows_whole_devices_only_says_that_they_are_whole(policy):
    result = replay(part("a", 0.0, 400), part("b", 0.0, 400), policy=policy)
    starts = sorted(job.start_s for job in result.jobs)
    assert starts[1] >= 100.0
    assert f"2 jobs that share a device have a whole one: {policy}" in result.warnings[0]


def test_a_model_of_a_trace_keeps_the_parts():
    model = fit(trace_of(part("a", 0.0, 250), part("b", 3600.0, 250)))
    (kind,) = model.kinds
    assert (kind.share_milli, kind.devices_per_task, kind.devices) == (250, 0, 0.25)


def test_jobs_end_as_they_did_and_are_counted():
    jobs = [
        TraceJob(id=end, submit_s=float(at), run_s=100.0 + at, end=end)
        for at, end in enumerate(("ok", "failed", "cancelled", "unknown"))
    ]
    result = replay(*jobs)
    assert [job.state for job in result.jobs] == ["succeeded", "failed", "cancelled", "succeeded"]
    assert [job.held_s for job in result.jobs] == [100.0, 101.0, 102.0, 103.0]
    assert [job.attempts for job in result.jobs] == [1] * 4
    sums = result.summary
    assert (sums.jobs, sums.failed, sums.cancelled, sums.unfinished) == (4, 1, 1, 0)
    plain = replay(*(TraceJob(id=j.id, submit_s=j.submit_s, run_s=j.run_s) for j in jobs))
    assert plain.summary.mean_jct_s == sums.mean_jct_s
    assert (plain.summary.failed, plain.summary.cancelled) == (0, 0)


def test_a_gang_that_failed_frees_all_its_devices():
    gang = TraceJob(id="g", submit_s=0.0, run_s=50.0, tasks=2, devices_per_task=1, end="failed")
    after = TraceJob(id="n", submit_s=1.0, run_s=10.0, tasks=2, devices_per_task=1)
    trace = trace_of(gang, after)
    result = run(trace, read_cluster("2x1"), built_in("fifo"))
    assert [job.state for job in result.jobs] == ["failed", "succeeded"]
    assert result.jobs[1].start_s == 50.0


def test_the_command_counts_them(tercio_replay):
    text = "1 5 2 60 16 -1 -1 16 120 2048 0 3 1 -1 2 -1 -1 -1\n"
    body = tercio_replay(text)
    assert (body["jobs"], body["failed"], body["cancelled"]) == (1, 1, 0)


@pytest.fixture
def tercio_replay(tmp_path, capfdbinary):
    """Replay a text by the command line, and return the body that it prints."""
    from tercio.cli.main import run as main

    def call(text: str):
        path = tmp_path / "log.swf"
        path.write_text(text)
        assert main(["twin", "replay", str(path), "--cluster", "4x8", "-o", "json"]) == 0
        return json.loads(capfdbinary.readouterr().out)

    return call
