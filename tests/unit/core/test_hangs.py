"""A job that stands still: told, stopped where the policy acts, restarted, and accounted for."""

from __future__ import annotations

import msgspec

from tercio.core.goodput import waterfall_of
from tercio.core.hangs import is_news
from tercio.core.story import tell
from tercio.model.effects import StopTask
from tercio.model.events import JobHung, RankPaceChanged, subjects
from tercio.model.ids import JobId, NodeName
from tercio.model.job import EndCause, JobState

from .test_healing import World


def hang(world: World, job_id: str, *, silent_s: float = 400.0, held_by: str = "") -> JobHung:
    job = world.driver.cluster.jobs[JobId(job_id)]
    return JobHung(
        at_s=world.now_s, job_id=job.id, attempt=job.attempt,
        last_progress_s=world.now_s - silent_s, limit_s=300.0, phase="step", tasks=(1,),
        held_by=held_by,
    )  # fmt: skip


def pace(world: World, job_id: str, ratio: float) -> RankPaceChanged:
    return RankPaceChanged(
        at_s=world.now_s, job_id=JobId(job_id), attempt=1, task=1, node=NodeName("n2"),
        ratio=ratio, words="GPU 0 is held down by its hardware",
    )  # fmt: skip


def story(world: World, subject: str) -> str:
    entries = [entry for entry in world.entries if subject in subjects(entry.event)]
    return "\n".join(line.text for line in tell(entries, subject))


def test_a_hang_is_stopped_with_little_grace_and_starts_again() -> None:
    world = World(mode="act")
    job_id = world.gang()
    world.now_s += 1000.0
    world.step([hang(world, job_id)])
    job = world.driver.cluster.jobs[JobId(job_id)]
    assert (job.state, job.attempt, job.retries) == (JobState.RUNNING, 2, 0)
    stops = [effect for effect in world.effects if isinstance(effect, StopTask)]
    assert [stop.grace_s for stop in stops] == [10.0, 10.0]
    assert "hung in step: silent for 6m40s" in stops[0].note
    told = story(world, job_id)
    assert "attempt 1 hangs in step: silent for 6m40s of 5m; the others wait for task 1" in told
    fall = waterfall_of(job, job.past)
    assert fall.hung_ms == 2 * 400_000
    assert fall.lost_ms == 2 * 600_000
    assert fall.allocated_ms == sum(fall.classes().values())


def test_in_shadow_a_hang_is_told_and_nothing_is_stopped() -> None:
    world = World()
    job_id = world.gang()
    event = hang(world, job_id, held_by="shadow")
    world.step([event])
    job = world.driver.cluster.jobs[JobId(job_id)]
    assert (job.state, job.attempt) == (JobState.RUNNING, 1)
    assert "held by: shadow" in story(world, job_id)
    assert not is_news(job, event)
    over = JobHung(
        at_s=world.now_s, job_id=job.id, attempt=1, last_progress_s=world.now_s, is_over=True
    )
    assert is_news(job, over)
    world.step([over])
    assert job.hang is None
    assert not is_news(job, over)


def test_a_job_that_hangs_again_and_again_fails() -> None:
    world = World(mode="act", hang_restarts=2)
    job_id = world.gang()
    for _ in range(3):
        world.now_s += 1000.0
        world.step([hang(world, job_id)])
    job = world.driver.cluster.jobs[JobId(job_id)]
    assert (job.state, job.attempt, job.cause) == (JobState.FAILED, 3, EndCause.HUNG)
    assert job.message.endswith("3 hangs in a row")
    assert not is_news(job, hang(world, job_id))


def test_a_slow_task_is_a_note_on_useful_time() -> None:
    world = World()
    job_id = world.gang()
    world.now_s += 100.0
    world.step([pace(world, job_id, 1.25)])
    job = world.driver.cluster.jobs[JobId(job_id)]
    assert not is_news(job, pace(world, job_id, 1.25))
    world.now_s += 100.0
    world.step([pace(world, job_id, 1.0)])
    told = story(world, job_id)
    assert "task 1 on n2 takes 25% longer for a step than its peers: GPU 0 is held down" in told
    assert "task 1 on n2 keeps pace again" in told
    assert "task 1 of job-00001 takes 25% longer" in story(world, "node/n2")
    world.now_s += 50.0
    world.step([hang(world, job_id, silent_s=0.0)])
    ended_well = msgspec.structs.replace(
        job.past[0], cause=EndCause.SUCCEEDED, stop_ordered_s=None, hung_s=None
    )
    fall = waterfall_of(job, [ended_well])
    # A hundred seconds at 1.25 times the pace of the others: a fifth of them, on both devices.
    assert fall.slow_ms == 2 * 20_000
    assert fall.useful_ms == 2 * 250_000
