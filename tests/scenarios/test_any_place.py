"""Tasks that may go anywhere: they leave room for those that may not, and keep off closed types."""

from __future__ import annotations

import msgspec
import pytest
from play import play

from tercio.model.job import JobSpec, TaskGroup
from tercio.model.queue import PlacementPolicy, Policy, QueueSpec
from tercio.testing import rules
from tercio.testing.build import cluster, gang, group
from tercio.testing.rounds import Rounds


def gang_of(*parts: TaskGroup) -> JobSpec:
    return msgspec.structs.replace(gang("1x1"), groups=(TaskGroup(subgroups=parts),))


def rounds(policy: Policy | None = None) -> Rounds:
    """Two nodes of four H100 and one of four A100."""
    nodes = [*cluster("2n x 4g"), *cluster("1n x 4g", device_type="A100", first=3)]
    return Rounds(nodes, policy or Policy(half_life_s=0.0), checks=rules.ALL)


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("pack", ["spread", "bestfit", "fragmentation"])
def test_a_task_of_any_type_leaves_the_only_node_to_those_who_need_it(pack: str, is_first: bool):
    """In either order of the groups and by every way to choose a node."""
    r = rounds(Policy(half_life_s=0.0, placement=PlacementPolicy(pack=pack)))
    r.start("x", gang("1x4"), on=("n2",))
    anywhere, h100 = group("1x4", name="a", device_type=None), group("2x2", name="b")
    r.submit("J", gang_of(anywhere, h100) if is_first else gang_of(h100, anywhere))
    r.settle()
    assert sorted(r.where("J")) == ["n1", "n1", "n3"]


def test_a_task_without_devices_leaves_whole_nodes_whole():
    r = rounds()
    head = group("1x0", name="head", device_type=None)
    r.submit("J", gang_of(head, group("2x4", name="crew", exclusive=True)))
    r.settle()
    assert r.where("J") == ["n3", "n1", "n2"]


@pytest.mark.parametrize("kind", ["guarantee", "limit", "user_limit"])
def test_a_job_of_any_type_keeps_off_a_type_that_a_limit_closes(kind: str):
    """Of A100 nothing is left to the queue, though its node fits best; of H100 there is."""
    amounts = {"H100": 4000} if kind == "guarantee" else {"A100": 0}
    queues = {"default": QueueSpec(**{kind: amounts}), "other": QueueSpec(guarantee={"A100": 4000})}
    r = rounds(Policy(half_life_s=0.0, queues=queues, placement=PlacementPolicy(pack="bestfit")))
    r.start("x", gang("1x3", device_type="A100"), on=("n3",), queue="other")
    r.submit("J", gang("1x1", device_type=None), preemptible=False)
    r.settle()
    assert r.where("J") in (["n1"], ["n2"])

    r.start("y", gang("1x4"), on=("n2",), queue="other")
    r.start("z", gang("1x3"), on=("n1",), queue="other")
    r.submit("K", gang("1x1", device_type=None), preemptible=False)
    r.settle()
    assert r.why("K").reason.value in ("WaitingForShare", "QueueLimit", "UserLimit")
    assert "A100" in r.why("K").message


def test_tasks_placed_out_of_order_are_given_back_when_the_job_ends():
    """The two smallest of three groups start: the later one is placed first."""
    play("""
    cluster 2n x 4g
    queue A -/6/1
    0 submit J A 1x4+1x3+1x2 least=2
    0 expect J running on=n1,n2
    5 end J
    5 submit K A 1x4+1x3+1x2 least=2
    5 expect K running on=n1,n2
    """)
