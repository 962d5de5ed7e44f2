"""Cutting cards into MIG slices: the vendor's placement tables, and where the next slice goes."""

from __future__ import annotations

import itertools
import random

import msgspec
import pytest

from tercio.core.ledger import Ledger
from tercio.errors import InvariantViolation
from tercio.formats.cluster import CUT_TYPES, read_cluster
from tercio.model.ids import NodeName
from tercio.model.job import JobSpec
from tercio.model.node import MigProfile, MigSlice, MigSpec, Node, NodeState, SliceFault
from tercio.model.placement import TaskPlacement
from tercio.model.queue import Policy, PreemptionPolicy, WithinQueue
from tercio.model.resources import DeviceRequest, DeviceShare
from tercio.sched.mig import best_start, can_be_cut, packaged_profiles, slice_bits, slice_milli
from tercio.testing import rules
from tercio.testing.build import cluster, gang, node
from tercio.testing.rounds import Rounds

H100 = packaged_profiles("H100", 80 * 10**9)
ONE, DOUBLE, TWO, THREE, FOUR, SEVEN = H100


def layouts(profiles: tuple[MigProfile, ...]) -> set[frozenset[tuple[str, int]]]:
    """Every set of slices that a card can hold at once."""
    found = {frozenset[tuple[str, int]]()}
    parts = [(p.name, start, slice_bits(p, start)) for p in profiles for start in p.starts]
    todo = [(frozenset[tuple[str, int]](), 0)]
    while todo:
        held, used = todo.pop()
        for name, start, bits in parts:
            bigger = held | {(name, start)}
            if not used & bits and bigger not in found:
                found.add(bigger)
                todo.append((bigger, used | bits))
    return found


@pytest.mark.parametrize(
    ("profiles", "count", "whole"),
    [
        # NVIDIA's MIG user guide shows 19 configurations of the A100 and of the H100.
        ((ONE, TWO, THREE, FOUR, SEVEN), 298, 19),
        (H100, 723, 78),
        (packaged_profiles("A30", 0), 26, 5),
    ],
)
def test_the_table_allows_the_layouts_that_the_vendor_shows(
    profiles: tuple[MigProfile, ...], count: int, whole: int
) -> None:
    found = layouts(profiles)
    full = [held for held in found if not any(held < other for other in found)]
    assert (len(found), len(full)) == (count, whole)


def test_slices_leave_room_for_the_largest_others() -> None:
    assert best_start(H100, THREE, 0) is not None
    assert best_start(H100, THREE, 0)[1] == 4, "a 4g still fits at 0"  # type: ignore[index]
    assert best_start(H100, ONE, 0)[1] == 6  # type: ignore[index]
    used = slice_bits(THREE, 4)
    assert best_start(H100, FOUR, used)[1] == 0  # type: ignore[index]
    assert best_start(H100, THREE, used | slice_bits(FOUR, 0)) is None


def test_more_slices_fit_than_from_the_front() -> None:
    def fitted(order: list[MigProfile], *, by_cost: bool) -> int:
        used = done = 0
        for profile in order:
            free = [s for s in profile.starts if not used & slice_bits(profile, s)]
            if free:
                found = best_start(H100, profile, used) if by_cost else (0, free[0])
                used |= slice_bits(profile, found[1])  # type: ignore[index]
                done += profile.size
        return done

    draw = random.Random(7)
    orders = [draw.choices((ONE, TWO, THREE, FOUR), k=4) for _ in range(400)]
    ours = sum(fitted(order, by_cost=True) for order in orders)
    front = sum(fitted(order, by_cost=False) for order in orders)
    assert ours > front


def test_a_slice_counts_as_its_compute_slices_rounded_down() -> None:
    assert [slice_milli(profile) for profile in H100] == [142, 142, 285, 428, 571, 1000]
    assert 7 * slice_milli(ONE) <= 1000


def test_the_cluster_file_knows_the_types_that_can_be_cut() -> None:
    assert all(can_be_cut(name) for name in CUT_TYPES)
    specs = read_cluster(
        "nodes: [{name: a, devices: 'H100:1', mig: on}, {name: b, devices: 'L4:1'}]"
    )
    assert [spec.devices[0].mig for spec in specs] == [MigSpec(is_on=True), None]
    assert (
        read_cluster("nodes: [{name: a, devices: 'A100:1', mig: none}]")[0].devices[0].mig is None
    )


def rounds(nodes: list[Node]) -> Rounds:
    preemption = PreemptionPolicy(
        within_queue=WithinQueue.LOWER_PRIORITY, grace_s=0.0, min_runtime_s=0.0
    )
    return Rounds(nodes, Policy(half_life_s=0.0, preemption=preemption), checks=rules.ALL)


def sliced(profile: str, count: int = 1) -> JobSpec:
    spec = gang("1x1")
    leaf = spec.groups[0]
    request = DeviceRequest(type="H100", count=count, mig_profile=profile)
    ask = msgspec.structs.replace(leaf.per_task, devices=(request,))
    return msgspec.structs.replace(spec, groups=(msgspec.structs.replace(leaf, per_task=ask),))


def with_mig(base: Node, *specs: MigSpec | None) -> Node:
    devices = tuple(
        msgspec.structs.replace(device, mig=mig)
        for device, mig in zip(base.spec.devices, itertools.cycle(specs), strict=False)
    )
    return msgspec.structs.replace(base, spec=msgspec.structs.replace(base.spec, devices=devices))


def shares(r: Rounds, name: str) -> list[tuple[int, str | None, int | None]]:
    task = r.running[name].tasks[0]
    return [(s.index, s.mig_profile, s.mig_start) for s in task.devices]


def test_slices_fill_a_cut_card_before_they_cut_another() -> None:
    r = rounds(cluster("1n x 2g"))
    for name in ("a", "b", "c"):
        r.submit(name, sliced("2g.20gb"))
    r.submit("whole", gang("1x1"))
    r.cycle()
    assert {index for name in "abc" for index, *_ in shares(r, name)} == {0}
    assert shares(r, "whole") == [(1, None, None)]


def test_several_slices_of_one_task_may_stand_on_several_cards() -> None:
    r = rounds(cluster("1n x 2g"))
    r.submit("a", sliced("3g.40gb", count=4))
    r.cycle()
    assert shares(r, "a") == [
        (0, "3g.40gb", 0), (0, "3g.40gb", 4), (1, "3g.40gb", 0), (1, "3g.40gb", 4),
    ]  # fmt: skip


def test_a_card_is_cut_or_whole_or_in_shares() -> None:
    r = rounds(cluster("1n x 1g"))
    r.submit("half", gang("1x0.1"))
    r.cycle()
    r.submit("cut", sliced("1g.10gb"))
    r.cycle()
    assert "cut" in r.waiting
    other = rounds(cluster("1n x 1g"))
    other.submit("cut", sliced("1g.10gb"))
    other.cycle()
    other.submit("half", gang("1x0.1"))
    other.submit("whole", gang("1x1"))
    other.cycle()
    assert set(other.waiting) == {"half", "whole"}


def test_the_ledger_refuses_a_slice_and_a_share_on_one_card() -> None:
    spec = cluster("1n x 1g")[0].spec
    part = DeviceShare(index=0, milli=142, mig_profile="1g.10gb", mig_start=6, mig_size=1)

    def task(number: int, share: DeviceShare) -> TaskPlacement:
        return TaskPlacement(task=number, node=NodeName("n1"), devices=(share,))

    ledger = Ledger()
    ledger.hold(spec, task(0, part))
    assert ledger.obstacle(spec, (task(1, part),)) == "device 0 of n1 has no such slice free"
    half = task(1, DeviceShare(index=0, milli=500))
    with pytest.raises(InvariantViolation, match="is cut into slices"):
        ledger.hold(spec, half)
    ledger.release(task(0, part), ())
    ledger.hold(spec, half)
    assert ledger.obstacle(spec, (task(0, part),)) == "device 0 of n1 is in use uncut"


def test_what_the_device_answers_wins_over_the_table() -> None:
    own = MigProfile(name="1g.11gb", compute=1, size=4, starts=(0, 4))
    r = rounds([with_mig(node("n1", 1), MigSpec(is_on=True, profiles=(own,)))])
    for name in ("a", "b", "c"):
        r.submit(name, sliced("1g.11gb"))
    r.submit("table", sliced("1g.10gb"))
    r.cycle()
    assert sorted(shares(r, name)[0][2] or 0 for name in ("a", "b")) == [0, 4]
    assert set(r.waiting) == {"c", "table"}
    assert r.reason("table") == "TypeUnavailable"
    assert "can be cut into 1g.10gb; there is 1g.11gb" in r.why("table").message


def test_of_a_card_that_is_left_as_it_is_only_its_slices_are_used() -> None:
    there = (
        MigSlice(profile="1g.10gb", start=2, size=1),
        MigSlice(profile="2g.20gb", start=4, size=2),
    )
    fixed = MigSpec(is_on=True, slices=there, fixed="the server is not root")
    r = rounds([with_mig(node("n1", 1), fixed)])
    for name in ("a", "b"):
        r.submit(name, sliced("1g.10gb"))
    r.submit("three", sliced("3g.40gb"))
    r.submit("whole", gang("1x1"))
    r.cycle()
    assert shares(r, "a") == [(0, "1g.10gb", 2)]
    assert set(r.waiting) == {"b", "three", "whole"}
    assert "n1 device 0: the server is not root" in r.why("three").message


def test_a_card_whose_slices_failed_is_left_alone_until_its_pause_is_over() -> None:
    base = with_mig(node("n1", 2), MigSpec(is_on=True), MigSpec())
    faults = tuple(SliceFault(index=at, reason="in use by pid 7", until_s=99.0) for at in (0, 1))
    r = rounds([msgspec.structs.replace(base, slice_faults=faults, state=NodeState.READY)])
    r.submit("cut", sliced("1g.10gb"))
    r.submit("whole", gang("1x1"))
    r.cycle()
    assert shares(r, "whole") == [(1, None, None)], "device 0 cannot leave MIG mode now"
    assert "in use by pid 7" in r.why("cut").message


def test_an_engine_that_cannot_cut_says_so() -> None:
    r = rounds([with_mig(node("n1", 1), None)])
    r.submit("cut", sliced("1g.10gb"))
    r.cycle()
    assert r.reason("cut") == "TypeUnavailable"
    assert "can be cut into MIG slices, as far as its engine says" in r.why("cut").message


def test_whole_cards_are_taken_before_those_in_mig_mode() -> None:
    r = rounds([with_mig(node("n1", 3), MigSpec(is_on=True), MigSpec(), MigSpec())])
    r.submit("two", gang("1x2"))
    r.cycle()
    assert [index for index, *_ in shares(r, "two")] == [1, 2]


def test_slices_are_stopped_for_a_whole_card_of_higher_priority() -> None:
    r = rounds(cluster("1n x 1g"))
    r.submit("a", sliced("1g.10gb"))
    r.submit("b", sliced("3g.40gb"))
    r.cycle()
    r.submit("whole", gang("1x1"), priority=10)
    r.settle()
    assert sorted(r.evicted()) == ["a", "b"]
    assert shares(r, "whole") == [(0, None, None)]


def test_only_the_slices_in_the_way_are_stopped_for_a_larger_one() -> None:
    r = rounds(cluster("1n x 1g"))
    for name, profile in (("three", "3g.40gb"), ("one", "1g.10gb"), ("two", "2g.20gb")):
        r.submit(name, sliced(profile))
        r.cycle()
    r.submit("four", sliced("4g.40gb"), priority=10)
    r.settle()
    assert sorted(r.evicted()) == ["one", "two"]
    assert shares(r, "four") == [(0, "4g.40gb", 0)]
