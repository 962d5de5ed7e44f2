"""Why a job of several groups waits: the group that decides, or what all are short of together."""

import pytest

from tercio.model.job import JobSpec, TaskGroup
from tercio.model.node import Node
from tercio.model.queue import Policy
from tercio.model.topology import TopologyRequest
from tercio.testing import rules
from tercio.testing.build import cluster, gang, group, node
from tercio.testing.rounds import Rounds

ONE, TWO = cluster("1n x 8g"), cluster("2n x 8g")
RACKS = cluster("2r x 1n x 8g")
SITES = [node("w1", 8, site="one"), node("w2", 8, site="two")]


def groups(*sizes: str, exclusive: bool = False, cpus: float = 1, **each: str) -> JobSpec:
    """`a=`, `b=` give the device type of a group; `same=` the level of the whole job."""
    same = each.pop("same", None)
    parts = tuple(
        group(size, name="abc"[at], exclusive=exclusive, cpus=cpus,
              device_type=each.get("abc"[at], "H100"))
        for at, size in enumerate(sizes)
    )  # fmt: skip
    topology = TopologyRequest(same=same) if same else None
    return JobSpec(name="j", groups=parts, topology=topology)


def some(least: int, *sizes: str, **types: str) -> JobSpec:
    """So many of the groups must start."""
    parts = groups(*sizes, **types).groups
    return JobSpec(name="j", groups=(TaskGroup(subgroups=parts, min_subgroups=least),))


def told(nodes: list[Node], job: JobSpec, **busy: str) -> tuple[str, str]:
    """Reason and message of a job beside others that run on the nodes named by the keys."""
    r = Rounds(nodes, Policy(half_life_s=0.0), checks=rules.ALL)
    for name, size in busy.items():
        r.start(f"on-{name}", gang(size), on=(name,))
    r.submit("J", job)
    r.settle()
    return r.reason("J"), r.why("J").message


@pytest.mark.parametrize(
    ("nodes", "job", "busy", "reason", "words"),
    [
        (TWO, groups("1x0", "1x0", exclusive=True), {"n1": "1x1"}, "Shape",
         "needs 2 whole nodes for all its groups; 1 node empty"),
        (TWO, gang("2x0", exclusive=True), {"n1": "1x1"}, "Shape",
         "needs 2 whole nodes with no device; 1 node empty"),
        (TWO, groups("1x4", "1x4", exclusive=True), {"n1": "1x1"}, "Fragmented",
         "needs 2 whole nodes for all its groups; 1 node empty"),
        (TWO, groups("1x0", "1x0", "1x0", exclusive=True), {}, "NeverFits",
         "needs 3 whole nodes for all its groups; the cluster has 2 nodes"),
        (ONE, groups("1x8", "1x8"), {"n1": "1x8"}, "NeverFits",
         "needs 16 H100 for all its groups; the cluster has 8 H100"),
        (ONE, groups("1x0.6", "1x0.6", "7x1"), {}, "NeverFits",
         "needs 8.2 H100 for all its groups; the cluster has 8 H100"),
        (TWO, groups("1x8", "1x4", "1x4"), {"n1": "1x4"}, "NoFreeDevices",
         "needs 16 H100 for all its groups; 12 of 16 H100 free"),
        # The type that is short, not the one that most is wanted of.
        ([*ONE, *cluster("1n x 8g", device_type="A100", prefix="a")],
         groups("1x8", "1x4", "1x4", a="A100"), {"n1": "1x4"}, "NoFreeDevices",
         "needs 8 H100 for all its groups; 4 of 8 H100 free"),
        (cluster("1n x 8g", slots=1), groups("1x4", "1x0"), {}, "NodeSlots",
         "not together (a: 1 task of 4 H100, b: 1 task of no device); task slots are short"),
        (cluster("1n x 8g", cpus=8), groups("1x4", "1x4", cpus=6), {}, "Shape",
         "each of its groups would fit, not together"),
        (SITES, groups("1x8", "1x8"), {}, "NeverFits",
         "needs 16 H100 for all its groups on one site; one, the largest, has 8 H100"),
        (SITES, groups("1x4", "1x4"), {"w1": "1x4", "w2": "1x4"}, "Topology",
         "needs 8 H100 for all its groups on one site; the best, one, has 4 H100 free"),
        (RACKS, groups("1x4", "1x4", same="rack"), {"n1": "1x4", "n2": "1x4"}, "Topology",
         "needs 8 H100 for all its groups in one rack; the best, r1, has 4 H100 free"),
        (RACKS, groups("1x8", "1x8", same="rack"), {}, "NeverFits",
         "in one rack; r1, the largest, has 8 H100"),
    ],
)  # fmt: skip
def test_groups_that_fit_alone_are_told_what_they_are_short_of_together(
    nodes, job, busy, reason, words
):
    code, message = told(nodes, job, **busy)
    assert (code, words in message) == (reason, True), message


@pytest.mark.parametrize(
    ("job", "reason", "words"),
    [
        (some(1, "1x8", "1x8", b="A100"), "NoFreeDevices", "0 of 8 H100 free"),
        (some(1, "1x16", "1x8"), "NoFreeDevices", "0 of 8 H100 free"),
        (some(1, "1x16", "1x9"), "NeverFits", "the largest node has 8 H100"),
        (some(2, "1x8", "1x8", "1x8"), "NeverFits", "the cluster has 8 H100"),
        (some(2, "1x8", "1x1", "1x16"), "NeverFits", "the cluster has 8 H100"),
    ],
)
def test_a_group_that_need_not_start_says_nothing_of_the_job(job, reason, words):
    code, message = told(ONE, job, n1="1x8")
    assert (code, words in message) == (reason, True), message


def test_a_job_that_starts_without_a_group_that_never_fits_keeps_its_promise():
    """It was told never to fit, and as such it held no place: a later job took it."""
    r = Rounds(ONE, Policy(half_life_s=0.0), checks=rules.ALL)
    r.start("busy", gang("1x4", limit_s=100), preemptible=False)
    r.submit("J", some(1, "1x8", "1x16"))
    r.submit("late", gang("1x4", limit_s=500))
    r.run(100.0)
    assert r.started_s("J") == 100.0
