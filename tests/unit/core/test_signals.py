"""A pause and its end reach the tasks, however messages get lost and cross."""

from __future__ import annotations

from tercio.core import signals
from tercio.model.effects import SignalTask
from tercio.model.events import (
    EffectAnswered,
    EffectTimedOut,
    JobIdled,
    JobResumeRequested,
    JobSuspendRequested,
)
from tercio.testing import make_job

from .machine import Machine


def pause(machine: Machine, job_id: str) -> SignalTask:
    (order,) = machine.do(JobSuspendRequested(at_s=machine.now_s, job_id=job_id, by="ana"))
    assert isinstance(order, SignalTask)
    return order


def go_on(machine: Machine, job_id: str) -> SignalTask:
    (order,) = machine.do(JobResumeRequested(at_s=machine.now_s, job_id=job_id, by="ana"))
    assert isinstance(order, SignalTask)
    return order


def lose(machine: Machine, order: SignalTask) -> list[SignalTask]:
    """Nobody answers until the deadline."""
    machine.now_s = order.deadline_s
    return machine.do(EffectTimedOut(at_s=machine.now_s, effect_id=order.effect_id))  # type: ignore[return-value]


def answer(machine: Machine, order: SignalTask) -> list[SignalTask]:
    return machine.do(EffectAnswered(at_s=machine.now_s, effect_id=order.effect_id))  # type: ignore[return-value]


def test_a_lost_end_of_a_pause_is_ordered_until_it_is_answered(machine: Machine) -> None:
    job_id = machine.run(make_job())
    answer(machine, pause(machine, job_id))
    order = go_on(machine, job_id)
    waits = []
    for _ in range(1100):  # long enough that a doubled wait would be beyond any number
        (again,) = lose(machine, order)
        assert (again.signal, again.effect_id) == ("SIGCONT", order.effect_id)
        waits.append(again.deadline_s - order.deadline_s)
        order = again
    assert waits[:3] == [60.0, 120.0, 240.0]
    assert waits[-1] == signals.LONGEST_TIMEOUT_S
    assert answer(machine, order) == []
    assert not machine.cluster.open_effects


def test_a_pause_that_was_taken_back_is_not_ordered_again(machine: Machine) -> None:
    job_id = machine.run(make_job())
    stop = pause(machine, job_id)
    answer(machine, go_on(machine, job_id))
    assert lose(machine, stop) == []


def test_a_pause_that_arrives_after_its_end_is_ended_again(machine: Machine) -> None:
    job_id = machine.run(make_job())
    stop = pause(machine, job_id)
    answer(machine, go_on(machine, job_id))
    (again,) = answer(machine, stop)
    assert again.signal == "SIGCONT"
    assert answer(machine, again) == []


def test_an_end_of_a_pause_that_arrives_after_the_next_pause_is_paused_again(
    machine: Machine,
) -> None:
    job_id = machine.run(make_job())
    answer(machine, pause(machine, job_id))
    late = go_on(machine, job_id)
    answer(machine, pause(machine, job_id))
    (again,) = answer(machine, late)
    assert again.signal == "SIGSTOP"


def test_a_lost_note_is_not_written_again(machine: Machine) -> None:
    """Else a log that cannot be written to now would get the same line many times later."""
    job_id = machine.run(make_job())
    until_s = machine.now_s + 600.0
    (note,) = machine.do(
        JobIdled(at_s=machine.now_s, job_id=job_id, attempt=1, since_s=0.0, stop_s=until_s)
    )
    assert isinstance(note, SignalTask)
    assert note.note
    assert lose(machine, note) == []
    assert not machine.cluster.open_effects


def test_a_signal_of_a_task_that_is_over_is_given_up(machine: Machine) -> None:
    job_id = machine.run(make_job())
    stop = pause(machine, job_id)
    machine.exit(job_id)
    assert lose(machine, stop) == []
    assert not machine.cluster.open_effects
