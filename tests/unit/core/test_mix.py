"""What usually comes, counted from what was submitted."""

from __future__ import annotations

import pytest

from tercio.core.mix import Mix
from tercio.model.job import ArraySpec, IndexRange
from tercio.testing import make_job

from .machine import Machine


def weights(mix: Mix) -> dict[int, float]:
    return {entry.request.devices[0].count: entry.weight for entry in mix.published}


def test_weights_are_parts_of_the_tasks_asked_for() -> None:
    mix = Mix()
    mix.note(make_job(devices=1, array=ArraySpec(ranges=(IndexRange(start=0, stop=60),))))
    mix.note(make_job(devices=8, tasks=20))
    assert weights(mix) == {1: 0.75, 8: 0.25}


def test_it_changes_seldom_and_forgets_slowly() -> None:
    mix = Mix()
    published = 0
    for _ in range(1000):
        before = mix.published
        mix.note(make_job(devices=1))
        published += mix.published is not before
    assert published < 60
    mix.note(make_job(devices=2, tasks=20_000))
    mix.note(make_job(devices=2, tasks=20_000))
    assert weights(mix)[2] == pytest.approx(0.975, abs=0.02)


def test_the_scheduler_sees_it_and_a_restart_keeps_it() -> None:
    machine = Machine()
    machine.submit(make_job(devices=4))
    mix = machine.cluster.snapshot().mix
    assert [entry.request.devices[0].count for entry in mix] == [4]
    again = type(machine.cluster).from_image(machine.cluster.image())
    assert again.snapshot().mix == mix
