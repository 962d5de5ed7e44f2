"""The elastic policy: jobs with throughput profiles get sizes and device types by gain."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest

from tercio.model.job import CheckpointSpec, Goodput, JobSpec, RetrySpec, TaskGroup
from tercio.model.node import Node
from tercio.model.queue import ElasticPolicy, Policy, PreemptionPolicy, QueueSpec, WithinQueue
from tercio.model.resources import NO_DEVICE, DeviceRequest, Request
from tercio.testing import rules
from tercio.testing.build import GIB, cluster, gang, node
from tercio.testing.rounds import Rounds

NEAR = Goodput(type="H100", tasks=(1, 2, 4, 8), units_per_s=(1.0, 1.9, 3.6, 6.4))
POOR = Goodput(type="H100", tasks=(1, 2, 4, 8), units_per_s=(1.0, 1.1, 1.15, 1.2))


def profiled(*profiles: Goodput, most: int = 8) -> JobSpec:
    devices = tuple(DeviceRequest(type=profile.type, count=1) for profile in profiles)
    return JobSpec(
        name="trained",
        groups=(TaskGroup(tasks=1, tasks_max=most, per_task=Request(devices=devices)),),
        checkpoint=CheckpointSpec(path="/data/run", grace_s=0.0),
        retry=RetrySpec(max=100, backoff_s=0.0),
        goodput=profiles,
    )


def rounds(nodes: str | list[Node], elastic: ElasticPolicy | None = None) -> Rounds:
    policy = Policy(
        half_life_s=0.0,
        preemption=PreemptionPolicy(grace_s=0.0),
        queues={"default": QueueSpec()},
        elastic=elastic or ElasticPolicy(),
    )
    return Rounds(cluster(nodes) if isinstance(nodes, str) else nodes, policy, checks=rules.ALL)


def size(r: Rounds, job: str) -> int:
    return len(r.snapshot().running[job].tasks)  # type: ignore[index]


def test_one_alone_starts_with_all_that_helps_it() -> None:
    r = rounds("1n x 8g")
    r.submit("a", profiled(NEAR))
    r.settle()
    assert size(r, "a") == 8


def test_two_that_start_together_share_by_what_they_gain() -> None:
    r = rounds("1n x 8g")
    r.submit("steep", profiled(NEAR))
    r.submit("flat", profiled(POOR))
    r.settle()
    assert (size(r, "steep"), size(r, "flat")) == (4, 4) or size(r, "flat") < size(r, "steep")


def test_a_running_job_shrinks_for_one_that_comes_and_grows_again_when_it_is_gone() -> None:
    r = rounds("1n x 8g", ElasticPolicy(restart_s=10.0))
    r.submit("a", profiled(NEAR))
    r.settle()
    r.run(3600.0)
    r.submit("b", profiled(NEAR), runs_s=1000.0)
    r.run(3601.0)
    assert (size(r, "a"), size(r, "b")) == (4, 4)
    r.run(9000.0)
    assert size(r, "a") == 8


def test_it_does_not_start_before_the_memory_of_the_evicted_one_is_free() -> None:
    """There are devices enough beside what stops, but not memory for both."""

    def asking(spec: JobSpec, *devices: DeviceRequest) -> JobSpec:
        ask = Request(devices=devices, memory_bytes=600 * GIB)
        group = msgspec.structs.replace(spec.groups[0], per_task=ask)
        return msgspec.structs.replace(spec, groups=(group,))

    r = rounds([node("n1", 8, memory_gib=1024)])
    preemption = PreemptionPolicy(
        within_queue=WithinQueue.LOWER_PRIORITY, grace_s=60.0, min_runtime_s=0.0
    )
    r.policy = msgspec.structs.replace(r.policy, preemption=preemption)
    r.start("low", asking(gang("1x1"), NO_DEVICE), dies_s=30.0, comes_back=False)
    r.submit("a", asking(profiled(NEAR), DeviceRequest(type="H100", count=1)), priority=10)
    r.settle()
    assert r.evicted() == ["low"]
    r.run(10.0)
    r.submit("tiny", gang("1x1"))
    r.run(11.0)
    assert r.started_s("a") is None
    r.run(40.0)
    assert r.started_s("a") == 30.0


def test_nobody_is_moved_twice_in_a_period_or_where_the_move_costs_more_than_it_gains() -> None:
    r = rounds("1n x 8g", ElasticPolicy(restart_s=10.0, period_s=600.0))
    r.submit("a", profiled(NEAR))
    r.run(5.0)
    r.submit("b", profiled(NEAR))
    r.run(590.0)
    assert size(r, "a") == 8
    r.run(700.0)
    assert (size(r, "a"), size(r, "b")) == (4, 4)


def test_the_type_that_helps_one_job_most_goes_to_it() -> None:
    r = rounds(
        [*cluster("1n x 1g"), *cluster("1n x 1g", device_type="A100", first=2)],
    )
    fast = (Goodput(type="H100", tasks=(1,), units_per_s=(10.0,)),
            Goodput(type="A100", tasks=(1,), units_per_s=(1.0,)))  # fmt: skip
    even = (Goodput(type="H100", tasks=(1,), units_per_s=(1.1,)),
            Goodput(type="A100", tasks=(1,), units_per_s=(1.0,)))  # fmt: skip
    r.submit("even", profiled(*even, most=1))
    r.submit("fast", profiled(*fast, most=1))
    r.settle()
    running = r.snapshot().running
    types = {str(job): r.nodes[running[job].tasks[0].node].spec.devices[0].type for job in running}
    assert types == {"even": "A100", "fast": "H100"}


def test_while_a_plain_job_waits_elastic_ones_start_at_their_least() -> None:
    r = rounds("1n x 8g")
    r.start("b", gang("1x4"))
    r.submit("plain", gang("1x8"))
    r.submit("a", profiled(NEAR))
    r.settle()
    assert size(r, "a") == 1


@pytest.mark.parametrize("change", ["path", "firm"])
def test_what_cannot_be_moved_stays(change: str) -> None:
    r = rounds("1n x 8g", ElasticPolicy(restart_s=10.0))
    spec = profiled(NEAR)
    if change == "path":
        spec = msgspec.structs.replace(spec, checkpoint=CheckpointSpec())
    r.submit("a", spec, preemptible=change != "firm")
    r.settle()
    first = size(r, "a")
    r.run(3600.0)
    r.submit("b", profiled(NEAR))
    r.run(3700.0)
    assert size(r, "a") == first


ALONE = Goodput(type="H100", tasks=(1,), units_per_s=(1.0,))
FOUR = Goodput(type="H100", tasks=(4,), units_per_s=(4.0,))
TURNS = ElasticPolicy(restart_s=10.0, period_s=60.0, turn_s=1000.0)


def four() -> JobSpec:
    spec = profiled(FOUR, most=4)
    group = msgspec.structs.replace(spec.groups[0], tasks=4, tasks_max=None)
    return msgspec.structs.replace(spec, groups=(group,))


def test_who_had_much_gives_its_turn_to_who_had_nothing_and_gets_it_back() -> None:
    r = rounds("1n x 1g", TURNS)
    r.submit("long", profiled(ALONE, most=1))
    r.run(5000.0)
    r.submit("short", profiled(ALONE, most=1), runs_s=100.0)
    r.settle()
    r.run(5059.0)
    assert r.evicted() == ["long"]
    assert r.started_s("short") is not None
    r.run(5300.0)
    assert list(r.snapshot().running) == ["long"]


def test_on_a_level_nobody_is_stopped_for_another() -> None:
    r = rounds("1n x 1g", TURNS)
    r.submit("first", profiled(ALONE, most=1))
    r.run(300.0)
    r.submit("second", profiled(ALONE, most=1))
    r.run(1000.0)
    assert r.evicted() == []
    r.run(1100.0)
    assert r.evicted() == ["first"]


def test_only_those_go_whose_devices_are_wanted() -> None:
    r = rounds("1n x 4g", TURNS)
    for name in "abcd":
        r.submit(name, profiled(ALONE, most=1))
    r.run(5000.0)
    r.submit("new", profiled(ALONE, most=1), runs_s=500.0)
    r.run(5100.0)
    assert len(r.evicted()) == 1


def test_a_gang_gets_its_turn_from_many_and_nobody_waits_for_ever() -> None:
    r = rounds("1n x 4g", TURNS)
    for name in "abcd":
        r.submit(name, profiled(ALONE, most=1))
    r.run(5000.0)
    r.submit("gang", four())
    r.run(5100.0)
    assert sorted(r.evicted()) == ["a", "b", "c", "d"]
    assert size(r, "gang") == 4
    r.run(200_000.0)
    stops = Counter(r.evicted())
    # Each is stopped as often as what it had doubles, not in every period, and comes back.
    assert set(stops) == {"a", "b", "c", "d", "gang"}
    assert max(stops.values()) < 50


@pytest.mark.parametrize("why", ["off", "rest", "priority"])
def test_a_turn_is_given_only_where_policy_and_priority_allow_it(why: str) -> None:
    r = rounds("1n x 1g", ElasticPolicy(restart_s=10.0, turn_s=None) if why == "off" else TURNS)
    if why == "rest":
        rest = PreemptionPolicy(grace_s=0.0, min_runtime_s=50_000.0)
        r.policy = msgspec.structs.replace(r.policy, preemption=rest)
    r.submit("long", profiled(ALONE, most=1), priority=1 if why == "priority" else 0)
    r.run(5000.0)
    r.submit("new", profiled(ALONE, most=1))
    r.run(9000.0)
    assert r.evicted() == []


@pytest.mark.parametrize("seed", range(4))
def test_the_rules_hold_with_plain_and_elastic_jobs_mixed(seed: int) -> None:
    stream = random.Random(seed)
    nodes = [*cluster("2n x 4g"), *cluster("1n x 8g", device_type="A100", first=3)]
    turn_s = 120.0 if seed % 2 else None
    r = rounds(nodes, ElasticPolicy(restart_s=20.0, period_s=30.0, turn_s=turn_s))
    for at in range(25):
        power = stream.uniform(0.3, 1.0)
        profile = tuple(
            Goodput(type=kind, tasks=(1, 2, 4, 8), units_per_s=tuple(
                speed * n**power for n in (1, 2, 4, 8)))
            for kind, speed in (("H100", stream.uniform(0.5, 4.0)), ("A100", 1.0))
        )  # fmt: skip
        is_plain = stream.random() < 0.25
        spec = gang(stream.choice(("1x2", "2x2", "1x4"))) if is_plain else profiled(*profile)
        r.submit(
            f"j{at}", spec, runs_s=stream.uniform(10.0, 400.0),
            dies_s=stream.choice((0.0, 5.0)), priority=stream.randrange(3),
        )  # fmt: skip
        r.run(r.now_s + stream.uniform(0.0, 60.0))
    r.run(r.now_s + 20_000.0)
    assert not r.snapshot().waiting
    assert not r.snapshot().running


@pytest.mark.parametrize(("most", "expected"), [(1, 2), (2, 4), (None, 5)])
def test_a_turn_and_a_move_stop_nobody_more_often_in_an_hour_than_the_policy_allows(
    most: int | None, expected: int
) -> None:
    r = rounds("1n x 1g", msgspec.structs.replace(TURNS, turn_s=60.0))
    preemption = PreemptionPolicy(
        grace_s=0.0, min_runtime_s=0.0, max_evictions_per_job_per_hour=most
    )
    r.policy = msgspec.structs.replace(r.policy, preemption=preemption)
    for name in "ab":
        r.submit(name, profiled(ALONE, most=1))
    r.run(3600.0)
    assert len(r.evicted()) == expected
