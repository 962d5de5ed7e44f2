"""Alternatives with a relative speed: the one that is done first, its wait included."""

import msgspec
import pytest

from tercio.model.job import JobSpec
from tercio.model.queue import Policy
from tercio.model.resources import DeviceRequest
from tercio.testing import rules
from tercio.testing.build import cluster, gang
from tercio.testing.rounds import Rounds


def either(expected_s: float | None, *, slow: float = 0.4) -> JobSpec:
    """Eight A100 or eight H100, in that order of preference; H100 is the faster."""
    spec = gang("1x8", expected_s=expected_s, speed={"H100": 1.0, "A100": slow})
    group = spec.groups[0]
    requests = tuple(DeviceRequest(type=name, count=8) for name in ("A100", "H100"))
    ask = msgspec.structs.replace(group.per_task, devices=requests)
    return msgspec.structs.replace(spec, groups=(msgspec.structs.replace(group, per_task=ask),))


def two_types(*, depth: int = 1) -> Rounds:
    nodes = [
        *cluster("1n x 8g", device_type="A100", prefix="a"),
        *cluster("1n x 8g", device_type="H100", prefix="h"),
    ]
    return Rounds(nodes, Policy(half_life_s=0.0, reservation_depth=depth), checks=rules.ALL)


def test_the_faster_of_two_that_are_free_whatever_the_order():
    r = two_types()
    r.submit("J", either(None))
    r.settle()
    assert r.where("J") == ["h1"]


@pytest.mark.parametrize(
    ("expected_s", "waits"),
    [(60.0, False), (66.0, False), (67.0, True), (1000.0, True), (None, False)],
)
def test_it_waits_only_if_it_is_done_earlier(expected_s: float | None, waits: bool):
    """H100 come free at 100. Run there takes E, here 2.5 E: waiting wins from E = 66.7 on."""
    r = two_types()
    r.start("busy", gang("1x8", limit_s=100), preemptible=False)
    r.submit("J", either(expected_s))
    r.settle()
    if not waits:
        assert r.where("J") == ["a1"]
        return
    assert r.reason("J") == "NoFreeDevices"
    assert r.why("J").message.endswith(
        "; A100 is free, but on H100 from 1970-01-01T00:01:40.000Z it is done earlier"
    )
    r.run(100)
    assert (r.where("J"), r.started_s("J"), r.evicted()) == (["h1"], 100.0, [])


def test_without_a_promise_it_does_not_wait():
    r = two_types()
    r.start("busy", gang("1x8", limit_s=100), preemptible=False)
    r.submit("first", gang("1x8", limit_s=1000))
    r.submit("J", either(1000.0))
    r.settle()
    assert r.where("J") == ["a1"], "first has the one promise for H100"
