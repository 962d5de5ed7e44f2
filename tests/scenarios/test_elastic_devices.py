"""Jobs whose number of devices per task is the scheduler's choice: `devices: H100:2..8`."""

from __future__ import annotations

import msgspec
import pytest
from play import USUAL

from tercio.launch.recipes import render
from tercio.model.ids import JobId
from tercio.model.job import Framework, JobSpec
from tercio.model.node import Node
from tercio.model.queue import Policy, QueueSpec
from tercio.model.resources import DeviceRequest
from tercio.sched.need import MAX_COMBINATIONS, compile_shape, counts_of
from tercio.sched.table import Table
from tercio.testing import rules
from tercio.testing.build import cluster, gang
from tercio.testing.rounds import Rounds

POLICY = Policy(
    queues={"default": QueueSpec()},  # type: ignore[dict-item]
    half_life_s=0.0,
    preemption=USUAL,
    reservation_depth=1,
)


def rounds(nodes: list[Node]) -> Rounds:
    return Rounds(nodes, POLICY, checks=rules.ALL)


def elastic(least: int, most: int, *, tasks: int = 1, **more: object) -> JobSpec:
    spec = gang(f"{tasks}x1", **more)  # type: ignore[arg-type]
    group = spec.groups[0]
    ask = msgspec.structs.replace(
        group.per_task, devices=(DeviceRequest(type="H100", count=least, count_max=most),)
    )
    return msgspec.structs.replace(spec, groups=(msgspec.structs.replace(group, per_task=ask),))


def counts(r: Rounds, job: str) -> list[int]:
    return [len(task.devices) for task in r.running[JobId(job)].tasks]


def test_a_job_starts_with_the_most_that_fits() -> None:
    r = rounds(cluster("1n x 8g"))
    r.submit("three", gang("1x3"))
    r.submit("e", elastic(2, 8))
    r.cycle()
    assert counts(r, "e") == [5]
    assert r.why("e").message == "starts on n1 with 5 devices per task"


def test_all_tasks_of_a_gang_get_the_same_number() -> None:
    r = rounds(cluster("2n x 8g"))
    r.submit("three", gang("1x3"))
    r.submit("e", elastic(2, 8, tasks=2))
    r.cycle()
    assert counts(r, "e") == [6, 6] or counts(r, "e") == [5, 5]


def test_less_than_the_least_waits_and_is_promised_the_least() -> None:
    r = rounds(cluster("1n x 8g"))
    r.submit("seven", gang("1x7", limit_s=100.0))
    r.cycle()
    r.submit("e", elastic(2, 8))
    r.cycle()
    assert "e" in r.waiting
    (promise,) = r.plans[-1].promises
    assert [len(task.devices) for task in promise.tasks] == [2]


def test_nobody_is_stopped_for_more_than_the_least() -> None:
    r = rounds(cluster("1n x 8g"))
    r.submit("low", gang("1x4"), priority=-10)
    r.cycle()
    r.submit("e", elastic(2, 8), priority=10)
    r.settle()
    assert r.evicted() == []
    assert counts(r, "e") == [4]


def test_others_are_stopped_for_the_least() -> None:
    r = rounds(cluster("1n x 8g"))
    r.submit("a", gang("1x7"), priority=-10)
    r.cycle()
    r.submit("e", elastic(2, 8), priority=10)
    r.settle()
    assert r.evicted() == ["a"]
    assert counts(r, "e")[0] >= 2


def test_a_job_that_is_stopped_for_another_starts_again_with_fewer() -> None:
    r = rounds(cluster("1n x 8g"))
    r.submit("e", elastic(2, 8), priority=-10)
    r.cycle()
    assert counts(r, "e") == [8]
    r.submit("high", gang("1x5"), priority=10)
    r.settle()
    assert r.evicted() == ["e"]
    assert counts(r, "e") == [3]
    assert counts(r, "high") == [5]


@pytest.mark.parametrize(
    ("least", "most", "found"),
    [
        (2, 4, (4, 3, 2)),
        (3, 3, (3,)),
        (1, 64, (64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)),
        (5, 20, (20, 16, 12, 8, 6, 5)),
    ],
)
def test_a_long_range_is_tried_in_steps(least: int, most: int, found: tuple[int, ...]) -> None:
    assert counts_of(DeviceRequest(type="H100", count=least, count_max=most)) == found


def test_the_least_of_everything_is_always_tried() -> None:
    table = Table((), 0, 0)
    table.add_nodes(cluster("1n x 8g"))
    group = elastic(1, 64).groups[0]
    spec = JobSpec(
        name="e", groups=tuple(msgspec.structs.replace(group, name=name) for name in "abc")
    )
    shape = compile_shape(spec, table)
    assert len(shape.combinations) == MAX_COMBINATIONS
    assert [need.count for need in shape.needs(shape.combinations[-1])] == [1, 1, 1]
    assert [shape.is_least(each) for each in shape.combinations].count(True) == 1


def test_torchrun_starts_one_process_per_device_that_it_got() -> None:
    r = rounds(cluster("1n x 8g"))
    r.submit("three", gang("1x3"))
    r.submit("e", elastic(2, 8))
    r.cycle()
    running = r.running[JobId("e")]
    (launch,) = render(
        msgspec.structs.replace(running.spec, framework=Framework.TORCHRUN),
        job_id=JobId("job-00001"),
        attempt=1,
        tasks=running.tasks,
        nodes={node.name: node.spec for node in cluster("1n x 8g")},
        ports={0: (20000, 20001)},
    )
    assert "--nproc-per-node=5 " in launch.command
