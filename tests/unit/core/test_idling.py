"""A job whose devices stay idle: warned, stopped with time to save, and back in the queue later."""

from __future__ import annotations

from tercio.core.idling import is_news
from tercio.core.story import tell
from tercio.model.effects import Notify, SignalTask, StopTask
from tercio.model.events import JobIdled, subjects
from tercio.model.ids import JobId
from tercio.model.job import JobState

from .test_healing import World


def idled(world: World, **fields: object) -> JobIdled:
    job = world.driver.cluster.jobs[JobId("job-00001")]
    named = {"since_s": world.now_s - 7200.0, "stop_s": world.now_s + 600.0} | fields
    return JobIdled(at_s=world.now_s, job_id=job.id, attempt=job.attempt, **named)  # type: ignore[arg-type]


def test_the_user_is_warned_in_log_story_and_webhook_and_the_job_goes_on() -> None:
    world = World(webhook="http://pager")
    job_id = world.gang()
    event = idled(world)
    world.step([event])
    job = world.driver.cluster.jobs[JobId(job_id)]
    assert job.state is JobState.RUNNING
    notes = [effect for effect in world.effects if isinstance(effect, SignalTask)]
    text = "all GPUs were idle for 2h: it is stopped and queued again in 10m unless they work"
    assert [(note.signal, note.note) for note in notes] == [("SIGCONT", text)] * 2
    (call,) = [effect for effect in world.effects if isinstance(effect, Notify)]
    assert (call.body["event"], call.body["user"], call.body["message"]) == ("idle", "root", text)
    entries = [entry for entry in world.entries if job_id in subjects(entry.event)]
    assert text in [line.text for line in tell(entries, job_id)]
    assert not is_news(job, event), "a warning is given once"


def test_it_is_stopped_with_its_grace_and_comes_back_later_each_time() -> None:
    world = World(spares=0)
    job_id = world.gang()
    job = world.driver.cluster.jobs[JobId(job_id)]
    for pause_s in (600.0, 1200.0):
        world.step([idled(world)])
        world.step([idled(world, is_reclaimed=True)])
        stop = [effect for effect in world.effects if isinstance(effect, StopTask)][-1]
        assert stop.grace_s == job.spec.checkpoint.grace_s
        assert "stopped to give them back, and queued again" in stop.note
        assert (job.state, job.retries) == (JobState.QUEUED, 0)
        world.later(pause_s - 1.0)
        assert job.state is JobState.QUEUED
        world.later(2.0)
        assert job.state is JobState.RUNNING
        assert job.idle is None


def test_work_ends_the_warning_and_nothing_is_stopped_without_one() -> None:
    world = World()
    job_id = world.gang()
    job = world.driver.cluster.jobs[JobId(job_id)]
    world.step([idled(world, is_reclaimed=True)])
    assert job.state is JobState.RUNNING
    world.step([idled(world, stop_s=None)])
    assert is_news(job, idled(world)), "that it will be stopped is news"
    world.step([idled(world, is_over=True)])
    assert job.idle is None
