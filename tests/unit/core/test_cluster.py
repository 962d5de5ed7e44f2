"""The machine by itself: events in, effects out, no loop and no socket."""

from __future__ import annotations

import msgspec
import pytest

from tercio.core.cluster import Cluster
from tercio.errors import InvariantViolation
from tercio.model.effects import LaunchTask, Notify, SignalTask, StopTask
from tercio.model.events import (
    EffectAnswered,
    EffectTimedOut,
    JobCancelRequested,
    JobEvicted,
    JobHeld,
    JobPlaced,
    JobReleased,
    JobRequeueRequested,
    JobResumeRequested,
    JobsForgotten,
    JobSubmitted,
    JobSuspendRequested,
    JobWaited,
    PolicyChanged,
    PromisesChanged,
    ServerStarted,
    TaskExited,
    TaskLaunchFailed,
    TimeLimitReached,
    TokenCreated,
    TokenRevoked,
)
from tercio.model.identity import Principal, Role, Token
from tercio.model.ids import EffectId, JobId, NodeName, QueuePath
from tercio.model.job import (
    ArraySpec,
    CheckpointSpec,
    Dependency,
    DependsWhen,
    EndCause,
    IndexRange,
    JobSpec,
    JobState,
    NotifySpec,
    RetrySpec,
    TimeSpec,
)
from tercio.model.placement import TaskPlacement
from tercio.model.reasons import Reason
from tercio.model.reservation import Promise
from tercio.model.resources import DeviceShare
from tercio.testing import make_job, make_policy

from .machine import Machine

J1 = JobId("job-00001")


def test_a_job_goes_from_submit_to_success(machine: Machine) -> None:
    job_id = machine.submit()
    assert machine.state(job_id) is JobState.QUEUED
    (launch,) = machine.place(job_id)
    assert isinstance(launch, LaunchTask)
    assert launch.effect_id == f"launch:{job_id}/1/0"
    assert launch.devices[0].uuid == "n1-0"
    assert len(launch.ports) == 4
    machine.start(job_id)
    assert machine.state(job_id) is JobState.RUNNING
    assert machine.exit(job_id) == []
    assert machine.state(job_id) is JobState.SUCCEEDED
    assert not machine.cluster.open_effects
    assert not machine.cluster.snapshot().running


def test_two_gangs_on_a_node_never_share_a_port(machine: Machine) -> None:
    first, second = machine.submit(), machine.submit()
    ports = [
        port
        for effect in machine.place(first, tasks=4) + machine.place(second, tasks=4, first_device=4)
        if isinstance(effect, LaunchTask)
        for port in effect.ports
    ]
    assert len(set(ports)) == 8 * 4


def test_a_device_is_never_given_twice(machine: Machine) -> None:
    first, second = machine.submit(), machine.submit()
    machine.place(first)
    taken = TaskPlacement(task=0, node=NodeName("n1"), devices=(DeviceShare(index=0),))
    with pytest.raises(InvariantViolation, match="device 0 of n1 is taken"):
        machine.cluster.apply(
            JobPlaced(at_s=machine.now_s, job_id=second, attempt=1, tasks=(taken,))
        )
    machine.cluster = Cluster()  # a refused event is a bug: the machine is not used any more


def test_one_failing_task_stops_its_gang_and_the_cause_is_told(machine: Machine) -> None:
    job_id = machine.run(tasks=3, spec=make_job(tasks=3))
    effects = machine.exit(job_id, task=1, code=7)
    assert [type(e) for e in effects] == [StopTask, StopTask]
    assert machine.state(job_id) is JobState.STOPPING
    machine.exit(job_id, task=0, code=None, signal=15)
    machine.exit(job_id, task=2, code=None, signal=15)
    job = machine.cluster.jobs[job_id]
    assert job.state is JobState.FAILED
    assert (job.exit_code, job.cause) == (7, EndCause.FAILED)
    assert job.message == "task 1 on n1 exited with code 7"


def test_a_repeated_or_late_exit_changes_nothing(machine: Machine) -> None:
    job_id = machine.run()
    machine.exit(job_id)
    before = machine.cluster.jobs[job_id].ended_s
    machine.exit(job_id, code=1)
    assert machine.state(job_id) is JobState.SUCCEEDED
    assert machine.cluster.jobs[job_id].ended_s == before


def test_an_old_attempt_cannot_speak_for_a_new_one(machine: Machine) -> None:
    job_id = machine.run(make_job(retry=RetrySpec(on=(EndCause.FAILED,))))
    machine.exit(job_id, code=1)
    assert machine.state(job_id) is JobState.QUEUED
    machine.place(job_id)
    machine.do(TaskExited(at_s=machine.now_s, job_id=job_id, attempt=1, task=0, exit_code=0))
    assert machine.state(job_id) is JobState.STARTING
    assert machine.cluster.jobs[job_id].attempt == 2


def test_retries_back_off_and_end(machine: Machine) -> None:
    retry = RetrySpec(on=(EndCause.FAILED,), max=2, backoff_s=10)
    job_id = machine.run(make_job(retry=retry))
    for expected_delay_s in (10, 20):
        at_s = machine.now_s
        machine.exit(job_id, code=1)
        waiting = machine.cluster.snapshot().waiting[job_id]
        assert waiting.not_before_s == at_s + expected_delay_s
        assert waiting.is_backing_off
        machine.place(job_id)
        machine.start(job_id)
    machine.exit(job_id, code=1)
    assert machine.state(job_id) is JobState.FAILED


def test_an_evicted_job_goes_back_to_its_queue_even_when_it_exits_well(machine: Machine) -> None:
    spec = make_job(checkpoint=CheckpointSpec(signal="SIGUSR1", grace_s=90))
    job_id = machine.run(spec)
    machine.do(PolicyChanged(at_s=machine.now_s, version=1, policy=make_policy(), by="root"))
    (stop,) = machine.do(JobEvicted(at_s=machine.now_s, job_id=job_id, cause=EndCause.PREEMPTED))
    assert isinstance(stop, StopTask)
    assert (stop.signal, stop.grace_s) == ("SIGUSR1", 0)  # the policy's grace is the most
    machine.exit(job_id, code=0)
    assert machine.state(job_id) is JobState.QUEUED
    assert machine.cluster.snapshot().waiting[job_id].last_nodes == ("n1",)


def test_surplus_tasks_of_an_elastic_job_stop_alone(machine: Machine) -> None:
    job_id = machine.run(tasks=3, spec=make_job(tasks=1, group={"tasks_max": 3}))
    event = JobEvicted(
        at_s=machine.now_s, job_id=job_id, cause=EndCause.PREEMPTED, tasks=(2,)
    )  # fmt: skip
    (stop,) = machine.do(event)
    assert isinstance(stop, StopTask)
    assert stop.task == 2
    running = machine.cluster.snapshot().running[job_id]
    assert (machine.state(job_id), running.stopping_tasks) == (JobState.RUNNING, (2,))
    machine.exit(job_id, task=2, code=None, signal=15)
    running = machine.cluster.snapshot().running[job_id]
    assert machine.state(job_id) is JobState.RUNNING
    assert [task.task for task in running.tasks] == [0, 1]
    machine.exit(job_id, task=0)
    machine.exit(job_id, task=1)
    assert machine.state(job_id) is JobState.SUCCEEDED


def test_an_attempt_that_lost_its_node_is_a_repair(machine: Machine) -> None:
    job_id = machine.run()
    assert not machine.cluster.snapshot().running[job_id].is_stopping
    machine.exit(job_id, code=None, is_lost=True)
    assert machine.cluster.snapshot().waiting[job_id].is_repair


def test_cancel_while_launching_stops_a_task_that_may_still_start(machine: Machine) -> None:
    job_id = machine.submit()
    machine.place(job_id)
    (stop,) = machine.do(JobCancelRequested(at_s=machine.now_s, job_id=job_id, by="ana"))
    assert isinstance(stop, StopTask)
    machine.start(job_id)  # the launch is answered late: the task stays told to stop
    assert machine.state(job_id) is JobState.STOPPING
    machine.exit(job_id, code=None, signal=15)
    assert machine.state(job_id) is JobState.CANCELLED
    assert machine.cluster.jobs[job_id].message == "cancelled by ana"


def test_a_launch_that_failed_for_good_fails_the_job(machine: Machine) -> None:
    job_id = machine.submit()
    machine.place(job_id)
    machine.do(
        TaskLaunchFailed(
            at_s=machine.now_s, job_id=job_id, attempt=1, task=0, message="no such directory",
            effect_id=EffectId(f"launch:{job_id}/1/0"),
        )
    )  # fmt: skip
    job = machine.cluster.jobs[job_id]
    assert (job.state, job.cause) == (JobState.FAILED, EndCause.LAUNCH_FAILED)
    assert "no such directory" in job.message


def test_a_gang_told_to_stop_ends_cleanly_when_a_launch_fails_late(machine: Machine) -> None:
    job_id = machine.submit(make_job(tasks=2))
    machine.place(job_id, tasks=2)
    for task in (0, 1):
        machine.do(
            TaskLaunchFailed(
                at_s=machine.now_s, job_id=job_id, attempt=1, task=task, message="no luck",
                effect_id=EffectId(f"launch:{job_id}/1/{task}"),
            )
        )  # fmt: skip
    assert machine.state(job_id) is JobState.FAILED
    assert not machine.cluster.open_effects


def test_an_unanswered_launch_is_ordered_again_and_then_stopped(machine: Machine) -> None:
    job_id = machine.submit()
    machine.place(job_id)
    effect_id = EffectId(f"launch:{job_id}/1/0")
    for _ in range(2):
        (again,) = machine.do(EffectTimedOut(at_s=machine.now_s, effect_id=effect_id))
        assert again.effect_id == effect_id
    (stop,) = machine.do(EffectTimedOut(at_s=machine.now_s, effect_id=effect_id))
    assert isinstance(stop, StopTask)
    machine.exit(job_id, code=None, is_lost=True)
    assert machine.state(job_id) is JobState.QUEUED  # node_failed is retried by default


def test_time_limit_counts_from_the_start_and_stands_still_while_suspended(
    machine: Machine,
) -> None:
    job_id = machine.run(make_job(time=TimeSpec(limit_s=100)))
    ends_s = machine.cluster.jobs[job_id].ends_s
    assert ends_s is not None
    suspended_s = machine.now_s
    (pause,) = machine.do(JobSuspendRequested(at_s=machine.now_s, job_id=job_id, by="ana"))
    assert isinstance(pause, SignalTask)
    assert pause.signal == "SIGSTOP"
    assert not any(isinstance(e, TimeLimitReached) for e in machine.cluster.due(ends_s))
    resumed_s = machine.now_s + 50
    machine.do(JobResumeRequested(at_s=resumed_s, job_id=job_id, by="ana"))
    machine.do(EffectAnswered(at_s=resumed_s, effect_id=pause.effect_id))
    assert machine.cluster.jobs[job_id].ends_s == ends_s + (resumed_s - suspended_s)
    (due,) = [e for e in machine.cluster.due(ends_s + 60) if isinstance(e, TimeLimitReached)]
    machine.do(due)
    machine.exit(job_id, code=None, signal=15)
    assert machine.cluster.jobs[job_id].cause is EndCause.TIME_LIMIT
    assert machine.state(job_id) is JobState.FAILED


def test_the_time_limit_of_an_attempt_that_ended_is_no_event(machine: Machine) -> None:
    job_id = machine.run(make_job(time=TimeSpec(limit_s=100)))
    ends_s = machine.cluster.jobs[job_id].ends_s
    assert ends_s is not None
    machine.exit(job_id, code=0)
    assert machine.state(job_id) is JobState.SUCCEEDED
    assert machine.cluster.due(ends_s) == []


def test_hold_and_release(machine: Machine) -> None:
    job_id = machine.submit()
    machine.do(JobHeld(at_s=machine.now_s, job_id=job_id, by="ana"))
    assert machine.state(job_id) is JobState.HELD
    assert machine.cluster.snapshot().waiting[job_id].is_held
    machine.do(JobReleased(at_s=machine.now_s, job_id=job_id, by="ana"))
    assert machine.state(job_id) is JobState.QUEUED


def test_requeue_runs_a_finished_job_again(machine: Machine) -> None:
    job_id = machine.run()
    machine.exit(job_id)
    machine.do(JobRequeueRequested(at_s=machine.now_s, job_id=job_id, by="ana"))
    machine.place(job_id)
    assert machine.cluster.jobs[job_id].attempt == 2


@pytest.mark.parametrize(
    ("when", "code", "expected"),
    [
        (DependsWhen.OK, 0, JobState.QUEUED),
        (DependsWhen.OK, 1, JobState.CANCELLED),
        (DependsWhen.FAILED, 1, JobState.QUEUED),
        (DependsWhen.FAILED, 0, JobState.CANCELLED),
        (DependsWhen.ANY, 1, JobState.QUEUED),
    ],
)
def test_dependencies(machine: Machine, when: DependsWhen, code: int, expected: JobState) -> None:
    first = machine.run()
    second = machine.submit(make_job(depends_on=(Dependency(job=first, when=when),)))
    assert machine.cluster.snapshot().waiting[second].blocked_on == (first,)
    machine.exit(first, code=code)
    assert machine.state(second) is expected
    if expected is JobState.QUEUED:
        assert machine.cluster.snapshot().waiting[second].blocked_on == ()
    else:
        assert first in machine.cluster.jobs[second].message


def test_an_element_that_waits_again_is_held_with_its_array(machine: Machine) -> None:
    ranges = (IndexRange(start=0, stop=1),)
    array = machine.submit(make_job(array=ArraySpec(ranges=ranges)))
    element = JobId(f"{array}.0")
    machine.place(element)
    machine.start(element)
    machine.do(JobHeld(at_s=machine.now_s, job_id=array, by="ana"))
    machine.do(JobRequeueRequested(at_s=machine.now_s, job_id=element, by="ana"))
    machine.exit(element, code=None, signal=15)
    assert machine.cluster.snapshot().waiting[element].is_held
    machine.do(JobReleased(at_s=machine.now_s, job_id=array, by="ana"))
    assert not machine.cluster.snapshot().waiting[element].is_held
    machine.do(JobHeld(at_s=machine.now_s, job_id=array, by="ana"))
    assert machine.cluster.snapshot().waiting[element].is_held


def test_a_chain_of_dependents_may_be_of_any_length(machine: Machine) -> None:
    first = last = machine.submit(is_held=True)
    for _ in range(1500):
        at_s, job_id = machine.now_s, JobId(f"job-{machine.cluster.jobs_submitted + 1:05}")
        spec = make_job(depends_on=(Dependency(job=last),))
        machine.cluster.apply(
            JobSubmitted(
                at_s=at_s, job_id=job_id, spec=spec,
                queue=QueuePath("default"), user="ana", tenant="default",
            )
        )  # fmt: skip
        last = job_id
    machine.do(JobCancelRequested(at_s=machine.now_s, job_id=first, by="ana"))
    assert {job.state for job in machine.cluster.jobs.values()} == {JobState.CANCELLED}
    assert machine.cluster.jobs[last].cause is EndCause.DEPENDENCY


def array(stop: int) -> JobSpec:
    return make_job(array=ArraySpec(ranges=(IndexRange(start=0, stop=stop),)))


def test_array_elements_get_records_when_they_start(machine: Machine) -> None:
    parent = machine.submit(array(100_000))
    assert len(machine.cluster.jobs) == 1
    first = JobId(f"{parent}.0")
    machine.place(first)
    machine.start(first)
    assert machine.state(parent) is JobState.RUNNING
    pending = machine.cluster.snapshot().waiting[parent].pending
    assert pending == (IndexRange(start=1, stop=100_000),)
    machine.exit(first)
    progress = machine.cluster.jobs[parent].array
    assert progress is not None
    assert (progress.active, progress.succeeded) == (0, 1)


def test_an_array_ends_with_its_last_element(machine: Machine) -> None:
    parent = machine.submit(array(2))
    for index, code in ((0, 0), (1, 3)):
        element = JobId(f"{parent}.{index}")
        machine.place(element)
        machine.start(element)
        machine.exit(element, code=code)
    job = machine.cluster.jobs[parent]
    assert job.state is JobState.FAILED
    assert job.message == "1 elements did not succeed"


def test_cancelling_an_array_cancels_every_element(machine: Machine) -> None:
    parent = machine.submit(array(5))
    element = JobId(f"{parent}.0")
    machine.place(element)
    machine.start(element)
    machine.do(JobCancelRequested(at_s=machine.now_s, job_id=parent, by="ana"))
    assert machine.state(parent) is JobState.RUNNING
    machine.exit(element, code=None, signal=15)
    assert machine.state(parent) is JobState.CANCELLED
    assert machine.cluster.jobs[parent].array.cancelled == 5


def test_webhooks_are_effects_of_the_states_they_name(machine: Machine) -> None:
    spec = make_job(notify=(NotifySpec(on=("finished",), url="http://127.0.0.1:1/x"),))
    job_id = machine.run(spec)
    effects = machine.exit(job_id)
    assert [type(e) for e in effects] == [Notify]
    assert effects[0].body["state"] == "succeeded"
    for _ in range(5):
        machine.do(EffectTimedOut(at_s=machine.now_s, effect_id=effects[0].effect_id))
    assert not machine.cluster.open_effects


def test_a_new_server_run_fences_the_open_effects(machine: Machine) -> None:
    job_id = machine.submit()
    machine.place(job_id)
    assert machine.do(ServerStarted(at_s=machine.now_s, epoch=2, version="test")) == []
    (launch,) = machine.cluster.open_effects.values()
    assert launch.epoch == 2


def test_usage_is_exact_device_milliseconds(machine: Machine) -> None:
    job_id = machine.submit(make_job(tasks=2))
    placed_s = machine.now_s
    machine.place(job_id, tasks=2)
    machine.start(job_id, tasks=2)
    machine.exit(job_id, task=0)
    last_s = machine.now_s
    machine.exit(job_id, task=1)
    usage = machine.cluster.ledger.usage_ms
    total = sum(ms for users in usage.values() for ms in users["ana"]["default"].values())
    assert total == round((2 * last_s - 1 - 2 * placed_s) * 1000)


def test_forgotten_jobs_are_gone(machine: Machine) -> None:
    job_id = machine.submit(submit_key="k")
    assert machine.cluster.job_by_submit_key("default", "ana", "k") == job_id
    machine.place(job_id)
    machine.start(job_id)
    machine.exit(job_id)
    machine.do(JobsForgotten(at_s=machine.now_s, job_ids=(job_id,)))
    assert not machine.cluster.jobs
    assert machine.cluster.job_by_submit_key("default", "ana", "k") is None


def test_waiting_reasons_promises_and_tokens_are_kept(machine: Machine) -> None:
    job_id = machine.submit()
    machine.do(
        JobWaited(at_s=machine.now_s, job_id=job_id, reason=Reason.ORDER, message="behind job-2")
    )
    assert machine.cluster.jobs[job_id].waited is Reason.ORDER
    promise = Promise(job_id=job_id, tasks=(), from_s=None, expires_s=machine.now_s + 60)
    machine.do(PromisesChanged(at_s=machine.now_s, promises=(promise,)))
    assert machine.cluster.snapshot().promises == (promise,)
    token = Token(token_id="t1", sha256="00", principal=Principal(user="ana", role=Role.USER))
    machine.do(TokenCreated(at_s=machine.now_s, token=token, by="root"))
    assert machine.cluster.tokens == {"t1": token}
    machine.do(TokenRevoked(at_s=machine.now_s, token_id="t1", by="root"))
    assert not machine.cluster.tokens


def test_snapshot_tells_what_changed_since_the_last_cycle(machine: Machine) -> None:
    assert machine.cluster.snapshot(is_cycle=True).changes is None
    job_id = machine.submit()
    changes = machine.cluster.snapshot(is_cycle=True).changes
    assert changes is not None
    assert changes.waiting == (job_id,)
    machine.place(job_id)
    changes = machine.cluster.snapshot(is_cycle=True).changes
    assert changes is not None
    assert (changes.nodes, changes.running, changes.waiting) == (("n1",), (job_id,), (job_id,))


def test_an_illegal_move_carries_the_story(machine: Machine) -> None:
    job_id = machine.run()
    machine.exit(job_id)
    with pytest.raises(InvariantViolation, match=r"succeeded -> suspended") as caught:
        machine.cluster.apply(JobSuspendRequested(at_s=machine.now_s, job_id=job_id, by="ana"))
    assert any("running -> succeeded" in line for line in caught.value.story)


def test_times_never_run_backwards(machine: Machine) -> None:
    before = machine.cluster.now_s
    machine.cluster.apply(msgspec.structs.replace(ServerStarted(at_s=0, epoch=3, version="x")))
    assert machine.cluster.now_s == before


def test_every_server_run_may_begin_its_ports_elsewhere(machine: Machine) -> None:
    first, second = machine.submit(), machine.submit()
    (before,) = machine.place(first)
    machine.do(ServerStarted(at_s=machine.now_s, epoch=2, version="test", first_port=31_996))
    (after,) = machine.place(second, first_device=1)
    assert isinstance(before, LaunchTask)
    assert isinstance(after, LaunchTask)
    assert before.ports == (20_000, 20_001, 20_002, 20_003)
    assert after.ports == (31_996, 31_997, 31_998, 31_999)


def test_a_job_that_is_put_back_does_not_wait_for_what_has_ended(machine: Machine) -> None:
    first = machine.run()
    second = machine.submit(make_job(depends_on=(Dependency(job=first),)))
    machine.do(JobCancelRequested(at_s=machine.cluster.now_s, job_id=second, by="ann"))
    machine.exit(first, code=1)
    machine.do(JobRequeueRequested(at_s=machine.cluster.now_s, job_id=second, by="ann"))
    assert machine.state(second) is JobState.QUEUED
    assert machine.cluster.snapshot().waiting[second].blocked_on == ()
