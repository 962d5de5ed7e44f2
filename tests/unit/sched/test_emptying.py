"""The count of what leaves says the same as a trial placement, and only where it may."""

from __future__ import annotations

import random

import pytest

from tercio.model.ids import JobId
from tercio.model.job import JobSpec, TaskGroup
from tercio.model.node import Node, NodeState
from tercio.model.queue import Policy
from tercio.model.resources import DeviceRequest, Request
from tercio.model.topology import TopologyRequest
from tercio.sched.devices import task_on
from tercio.sched.emptying import Emptying, is_counted
from tercio.sched.fits import Fits
from tercio.sched.need import Shape, compile_shape
from tercio.sched.table import Table
from tercio.testing.factories import make_node


def table_of(nodes: int) -> Table:
    table = Table((), 8_000, 64 << 30)
    table.add_nodes(
        Node(spec=make_node(f"n{at}", devices=8), state=NodeState.READY) for at in range(nodes)
    )
    return table


def shape_of(table: Table, devices: int, tasks: int, wish: TopologyRequest | None = None) -> Shape:
    request = Request(devices=(DeviceRequest(type="H100", count=devices),))
    group = TaskGroup(tasks=tasks, per_task=request, topology=wish)
    return compile_shape(JobSpec(name="j", groups=(group,), run="x"), table)


@pytest.mark.parametrize("seed", range(8))
def test_what_leaves_on_paper_is_what_leaves(seed: int) -> None:
    draw = random.Random(seed)
    table, fits = table_of(4), Fits(Policy())
    single = shape_of(table, 1, 1)
    one = fits.of(single.needs(single.combinations[0])[0], table)
    held = []
    for number in range(60):
        row = draw.randrange(4)
        task = task_on(one.refresh(), row, task=0, group=0)
        if task is not None and table.has_host_room(row, task):
            table.hold(row, JobId(f"j{number}"), task)
            held.append((row, JobId(f"j{number}"), task))
    wanted = draw.choice((1, 3, 6))
    shape = shape_of(table, draw.choice((1, 2, 4)), wanted)
    fit = fits.of(shape.needs(shape.combinations[0])[0], table)
    assert is_counted(shape, fit)
    emptying = Emptying(fit, wanted, None)
    draw.shuffle(held)
    rooms = [emptying.room]
    for row, _, task in held:
        emptying.give_back(row, task)
        rooms.append(emptying.room)
    for at, (row, job, task) in enumerate(held, start=1):
        table.release(row, job, task)
        assert fit.refresh().room_for(wanted) == rooms[at]
    assert rooms == sorted(rooms)
    assert rooms[0] < rooms[-1]
    assert emptying.is_enough


@pytest.mark.parametrize("topology", [TopologyRequest(same="rack"), TopologyRequest(spread="rack")])
def test_who_wants_to_stand_together_or_apart_is_not_counted(topology: TopologyRequest) -> None:
    table = table_of(2)
    shape = shape_of(table, 8, 2, topology)
    fit = Fits(Policy()).of(shape.needs(shape.combinations[0])[0], table)
    assert not is_counted(shape, fit)
