"""Our own journal as a trace: events in, and the file of a real store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tercio.cli.twin_files import open_trace
from tercio.errors import UserError
from tercio.model.events import (
    AnyEvent,
    Entry,
    JobCancelRequested,
    JobEvicted,
    JobPlaced,
    JobSubmitted,
    TaskExited,
    TaskStarted,
)
from tercio.model.ids import EffectId, JobId, NodeName, QueuePath
from tercio.model.job import EndCause, JobSpec, TaskGroup, TimeSpec
from tercio.model.placement import TaskPlacement
from tercio.model.resources import DeviceRequest, Request
from tercio.store.journal import Journal
from tercio.twin.traces.journal import read_journal

SPEC = JobSpec(
    name="sft",
    priority=5,
    groups=(
        TaskGroup(
            tasks=2,
            per_task=Request(devices=(DeviceRequest(type="H100", count=8),), cpus_milli=4000),
        ),
    ),
    time=TimeSpec(limit_s=7200.0),
    labels={"project": "x"},
)


def life(job: str, *, submit_s: float = 0.0, start_s: float = 10.0, exit_code: int = 0,
         attempt: int = 1, run_s: float = 60.0, is_new: bool = True) -> list[AnyEvent]:  # fmt: skip
    job_id = JobId(job)
    tasks = tuple(TaskPlacement(task=task, node=NodeName("n1")) for task in range(2))
    events: list[AnyEvent] = []
    if is_new:
        events.append(
            JobSubmitted(at_s=submit_s, job_id=job_id, spec=SPEC, queue=QueuePath("research/nlp"),
                         user="ana", tenant="research")
        )  # fmt: skip
    events.append(JobPlaced(at_s=start_s, job_id=job_id, attempt=attempt, tasks=tasks))
    events += [
        TaskStarted(at_s=start_s + task, job_id=job_id, attempt=attempt, task=task,
                    effect_id=EffectId(f"e{job}{attempt}{task}"))
        for task in range(2)
    ]  # fmt: skip
    events += [
        TaskExited(at_s=start_s + run_s, job_id=job_id, attempt=attempt, task=task,
                   exit_code=exit_code)
        for task in range(2)
    ]  # fmt: skip
    return events


def test_a_job_is_what_was_asked_and_how_long_it_ran() -> None:
    (job,) = read_journal(life("job-00001"), "j").jobs
    assert (job.id, job.submit_s, job.run_s, job.end) == ("job-00001", 0.0, 60.0, "ok")
    assert (job.tasks, job.devices_per_task, job.device_type) == (2, 8, "H100")
    assert (job.cpus_per_task, job.limit_s, job.priority) == (4.0, 7200.0, 5)
    assert (job.user, job.queue, job.columns["project"]) == ("ana", "research/nlp", "x")


def test_the_last_attempt_counts() -> None:
    evicted = JobEvicted(at_s=70.0, job_id=JobId("job-00001"), cause=EndCause.PREEMPTED)
    events = life("job-00001", run_s=60.0, exit_code=143)
    events.insert(-2, evicted)
    again = life("job-00001", start_s=100.0, run_s=25.0, attempt=2, is_new=False)
    trace = read_journal([*events, *again], "j")
    assert (trace.jobs[0].run_s, trace.jobs[0].end) == (25.0, "ok")
    assert trace.warnings == ("1 job: ran more than once; the last attempt is replayed",)
    assert read_journal(events, "j").jobs[0].end == "cancelled"


def test_a_failed_and_a_cancelled_job() -> None:
    failed = life("job-00001", exit_code=1)
    cancelled = life("job-00002", exit_code=143)
    cancelled.insert(-2, JobCancelRequested(at_s=60.0, job_id=JobId("job-00002"), by="ana"))
    ends = [job.end for job in read_journal([*failed, *cancelled], "j").jobs]
    assert ends == ["failed", "cancelled"]


def test_what_has_not_ended_is_counted() -> None:
    waiting, running = life("job-00001")[:1], life("job-00002")[:-1]
    trace = read_journal([*waiting, *running, *life("job-00003")], "j")
    assert [job.id for job in trace.jobs] == ["job-00003"]
    assert [warning.split(":")[0] for warning in trace.warnings] == ["left out 1 row"] * 2
    with pytest.raises(UserError, match="no job that can be replayed"):
        read_journal(waiting, "j")


def test_elements_of_an_array_are_jobs() -> None:
    submitted = life("job-00001")[0]
    elements = [*life("job-00001.0", is_new=False), *life("job-00001.1", is_new=False)]
    trace = read_journal([submitted, *elements], "j")
    assert [job.id for job in trace.jobs] == ["job-00001.0", "job-00001.1"]


def test_the_file_of_a_store_is_recognised_and_read_beside_its_server(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal.open(path)
    try:
        journal.append([Entry(seq=seq, event=e) for seq, e in enumerate(life("job-00001"), 1)])
        trace = open_trace([path], filters=["project=x"])
    finally:
        journal.close()
    assert (trace.kind, len(trace.jobs), trace.jobs[0].run_s) == ("journal", 1, 60.0)
