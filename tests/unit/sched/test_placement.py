"""What fits where: devices, shares, gangs, topology, elastic sizes, filters."""

from collections.abc import Iterable

import msgspec
import pytest

from tercio.model.job import IndexRange, JobSpec
from tercio.model.node import Node, NodeState
from tercio.model.queue import Policy, PowerBudget
from tercio.model.resources import DeviceRequest
from tercio.model.topology import SliceRequest, TopologyRequest
from tercio.testing import rules
from tercio.testing.build import cluster, gang, group, node
from tercio.testing.rounds import Rounds

POLICY = Policy(half_life_s=0.0)


def rounds(nodes: Iterable[Node], policy: Policy = POLICY) -> Rounds:
    return Rounds(nodes, policy, checks=rules.ALL)


def devices(r: Rounds, job: str) -> list[list[int]]:
    return [[s.index for s in t.devices] for t in r.running[job].tasks]  # type: ignore[index]


def test_whole_devices_are_held_once_and_used_up():
    r = rounds(cluster("1n x 4g"))
    for at in range(5):
        r.submit(f"j{at}", gang("1x1"))
    r.cycle()
    assert sorted(d for j in ("j0", "j1", "j2", "j3") for d in devices(r, j)[0]) == [0, 1, 2, 3]
    assert r.reason("j4") == "NoFreeDevices"


def test_memory_shares_fill_a_card_to_the_last_that_fits():
    r = rounds([node("n1", 1, memory_mib=46_068)])
    for at in range(24):
        r.submit(f"j{at}", gang("1x2000MiB"))
    r.cycle()
    assert len(r.running) == 23
    assert r.reason("j23") in ("NoFreeDevices", "Fragmented")


def test_shares_of_one_card_never_pass_it_and_leave_others_whole():
    r = rounds(cluster("1n x 2g"))
    for at in range(4):
        r.submit(f"s{at}", gang("1x0.5"))
    r.submit("w", gang("1x1"))
    r.cycle()
    assert [devices(r, f"s{at}") for at in range(4)] == [[[0]], [[0]], [[1]], [[1]]]
    assert r.reason("w") == "NoFreeDevices"


def test_a_shared_card_is_not_given_whole():
    r = rounds(cluster("1n x 1g"))
    r.submit("s", gang("1x0.1"))
    r.submit("w", gang("1x1"))
    r.cycle()
    assert r.reason("w") == "NoFreeDevices"


def test_mig_slices_follow_the_placement_table():
    r = rounds([node("n1", 1)])
    spec = gang("1x1")
    three = DeviceRequest(type="H100", count=1, mig_profile="3g.40gb")
    for at in range(3):
        r.submit(f"m{at}", with_devices(spec, three))
    r.cycle()
    starts = [r.running[f"m{at}"].tasks[0].devices[0].mig_start for at in range(2)]  # type: ignore[index]
    assert sorted(starts) == [0, 4]  # type: ignore[type-var]
    assert "m2" in r.waiting


def with_devices(spec: JobSpec, *requests: DeviceRequest) -> JobSpec:
    leaf = spec.groups[0]
    ask = msgspec.structs.replace(leaf.per_task, devices=requests)
    return msgspec.structs.replace(spec, groups=(msgspec.structs.replace(leaf, per_task=ask),))


def test_alternatives_are_taken_in_order():
    nodes = cluster("1n x 4g") + cluster("1n x 8g", device_type="A100", first=2)
    r = rounds(nodes)
    both = (DeviceRequest(type="H100", count=4), DeviceRequest(type="A100", count=8))
    r.submit("a", with_devices(gang("1x1"), *both))
    r.submit("b", with_devices(gang("1x1"), *both))
    r.cycle()
    assert (r.where("a"), r.where("b")) == (["n1"], ["n2"])


def test_what_is_told_of_alternatives_is_told_of_the_nearest():
    """No node has an accelerator; CPU devices there are, only too few of them."""
    r = rounds([node("c1", 2, device_type="CPU")])
    both = (DeviceRequest(count=1), DeviceRequest(type="CPU", count=1))
    r.submit("a", with_devices(gang("3x1"), *both))
    r.cycle()
    decision = r.why("a")
    assert decision.reason == "NeverFits"
    assert decision.message == ("needs 3 tasks of 1 CPU; the whole cluster, empty, has room for 2")
    assert (decision.wanted, decision.free) == ({"CPU": 3.0}, {"CPU": 2.0})
    assert decision.change is not None
    assert (decision.change.what, decision.change.to, decision.change.starts) == ("tasks", 2, "now")


def test_any_accelerator_keeps_a_gang_on_one_type_and_off_cpu_devices():
    nodes = [
        node("c1", 8, device_type="CPU"),
        *cluster("1n x 2g"),
        *cluster("2n x 2g", device_type="A100", first=2),
    ]
    r = rounds(nodes)
    r.submit("a", gang("2x2", device_type=None))
    r.submit("c", gang("1x2", device_type="CPU"))
    r.cycle()
    assert r.where("a") == ["n2", "n3"]
    assert r.where("c") == ["c1"]


def test_an_elastic_count_takes_what_is_there():
    r = rounds(cluster("1n x 3g"))
    r.submit("e", with_devices(gang("1x1"), DeviceRequest(type="H100", count=2, count_max=8)))
    r.cycle()
    assert devices(r, "e") == [[0, 1, 2]]


def test_an_elastic_gang_starts_as_large_as_fits():
    r = rounds(cluster("1n x 6g"))
    r.submit("e", gang("2x1", tasks_max=4))
    r.submit("f", gang("1x1", tasks_max=9))
    r.cycle()
    assert len(r.running["e"].tasks) == 4  # type: ignore[index]
    assert len(r.running["f"].tasks) == 2  # type: ignore[index]


def test_default_share_never_strands_the_last_device():
    r = rounds([node("n1", 2, cpus=3, memory_gib=16)])
    r.submit("a", gang("1x1", cpus=None))
    r.submit("b", gang("1x1", cpus=None))
    r.cycle()
    assert [r.running[j].tasks[0].cpus_milli for j in ("a", "b")] == [1500, 1500]  # type: ignore[index]


def test_cores_bind_when_asked_for():
    r = rounds([node("n1", 8, cpus=8)])
    r.submit("a", gang("1x1", cpus=6))
    r.submit("b", gang("1x1", cpus=4))
    r.cycle()
    assert r.reason("b") == "Shape"
    assert "4 cores on one node; best node n1 has 2 cores" in r.why("b").message
    assert (r.why("b").change.what, r.why("b").change.to) == ("cpus", 2)  # type: ignore[union-attr]


def test_slots_bind():
    r = rounds(cluster("1n x 8g", slots=2))
    r.submit("a", gang("1x2"))
    r.submit("b", gang("2x2"))
    r.cycle()
    assert r.reason("b") == "NodeSlots"
    assert "1 of 2 task slots" in r.why("b").message


def test_an_exclusive_task_takes_an_idle_node_whole():
    r = rounds(cluster("2n x 4g"))
    r.submit("a", gang("1x1"))
    r.submit("x", gang("1x1", exclusive=True))
    r.submit("y", gang("1x1", exclusive=True))
    r.cycle()
    assert r.where("x") != r.where("a")
    assert devices(r, "x") == [[0, 1, 2, 3]]
    assert r.reason("y") == "Fragmented"


def test_gang_stays_in_the_smallest_rack_that_holds_it():
    r = rounds(cluster("3r x 4n x 8g"))
    r.submit("a", gang("3x8"))
    r.cycle()
    r.submit("b", gang("1x8"))
    r.submit("c", gang("4x8"))
    r.cycle()
    assert r.where("a") == ["n1", "n2", "n3"]
    assert r.where("b") == ["n4"]
    assert r.where("c") == ["n5", "n6", "n7", "n8"]


def test_same_rack_is_demanded_and_explained():
    r = rounds(cluster("2r x 4n x 8g"))
    r.submit("a", gang("1x8"))
    r.cycle()
    r.submit("b", gang("5x8", same="rack"))
    r.submit("c", gang("4x8", same="rack"))
    r.submit("d", gang("4x8", same="rack"))
    r.cycle()
    assert r.where("c") == ["n5", "n6", "n7", "n8"]
    assert r.reason("b") == "NeverFits"
    assert "in one rack; the largest, r1, has room for 4" in r.why("b").message
    assert r.reason("d") in ("NoFreeDevices", "Topology")


def test_topology_message_names_the_best_domain_and_the_change():
    r = rounds(cluster("2r x 2n x 8g"))
    r.submit("a", gang("1x8"))
    r.submit("b", gang("1x8", exclude=("n1", "n2")))
    r.cycle()
    r.submit("c", gang("2x8", same="rack"))
    r.cycle()
    decision = r.why("c")
    assert decision.reason == "Topology"
    assert "in one rack; 16 free, best rack r1 has room for 1" in decision.message
    assert decision.change.what == "tasks"  # type: ignore[union-attr]


def test_prefer_falls_back():
    r = rounds(cluster("2r x 2n x 8g"))
    r.submit("a", gang("3x8", prefer="rack"))
    r.cycle()
    assert len(r.where("a")) == 3


def test_spread_divides_over_racks():
    r = rounds(cluster("2r x 2n x 8g"))
    r.submit("a", gang("4x1", spread="rack"))
    r.cycle()
    racks = [r.nodes[n].spec.labels["rack"] for n in r.where("a")]  # type: ignore[index]
    assert sorted(racks) == ["r1", "r1", "r2", "r2"]


def test_slices_keep_tasks_together():
    r = rounds(cluster("3r x 3n x 8g"))
    topology = TopologyRequest(slice=SliceRequest(tasks=2, same="rack"))
    spec = JobSpec(name="s", groups=(group("6x8", topology=topology),))
    r.submit("a", spec)
    r.cycle()
    racks = [r.nodes[n].spec.labels["rack"] for n in r.where("a")]  # type: ignore[index]
    assert racks[0] == racks[1]
    assert racks[2] == racks[3]
    assert racks[4] == racks[5]


def test_a_job_of_two_groups_is_placed_whole_or_not_at_all():
    r = rounds(cluster("1n x 8g"))
    spec = JobSpec(name="two", groups=(group("1x8", name="m"), group("1x8", name="w")))
    r.submit("a", spec)
    r.submit("b", gang("1x8"))
    r.cycle()
    assert r.where("b") == ["n1"]
    assert r.reason("a") == "NeverFits" or r.reason("a") == "NoFreeDevices"


def test_nested_groups_start_with_their_minimum():
    r = rounds(cluster("2r x 2n x 8g"))
    inner = tuple(
        group("2x8", name=f"g{at}", topology=TopologyRequest(same="rack")) for at in range(3)
    )
    outer = msgspec.structs.replace(group("1x1", name="all"), subgroups=inner, min_subgroups=2)
    r.submit("a", JobSpec(name="nest", groups=(outer,)))
    r.cycle()
    assert len(r.where("a")) == 4


def test_filters_exclude_and_are_counted():
    nodes = [*cluster("2r x 1n x 8g"), node("n9", labels={"rack": "r9"}, state=NodeState.DOWN)]
    r = rounds(nodes)
    r.submit("a", gang("1x8", match="labels['rack'] == 'r2'"))
    r.submit("b", gang("1x8", match="labels['rack'] == 'r7'"))
    r.submit("c", gang("3x8", exclude=()))
    r.cycle()
    assert r.where("a") == ["n2"]
    assert r.reason("b") == "Constraint"
    assert r.reason("c") == "Health"
    assert "n9 (down)" in r.why("c").message
    assert {e.by: e.nodes for e in r.why("c").excluded} == {"down": 1}


def test_cordoned_nodes_take_nothing_and_can_be_the_change():
    r = rounds(cluster("2n x 8g"))
    r.set_state("n2", NodeState.CORDONED, cordon=True)
    r.submit("a", gang("2x8"))
    r.cycle()
    assert r.reason("a") == "Health"
    assert (r.why("a").change.what, r.why("a").change.to) == ("tasks", 1)  # type: ignore[union-attr]
    r.set_state("n2", NodeState.READY)
    r.cycle()
    assert r.where("a") == ["n1", "n2"]


def test_foreign_and_unhealthy_devices_are_left_alone():
    first = node("n1", 4)
    spec = msgspec.structs.replace(first.spec, foreign_devices=(0,))
    sick = msgspec.structs.replace(spec.devices[3], healthy=False)
    spec = msgspec.structs.replace(spec, devices=(*spec.devices[:3], sick))
    r = rounds([msgspec.structs.replace(first, spec=spec)])
    r.submit("a", gang("1x2"))
    r.submit("b", gang("1x1"))
    r.cycle()
    assert devices(r, "a") == [[1, 2]]
    assert r.reason("b") == "NoFreeDevices"


def test_sites_are_tried_in_order_and_never_mixed():
    nodes = [
        node("a1", 8, site="one"), node("a2", 8, site="one"), node("b1", 8, site="two"),
    ]  # fmt: skip
    r = rounds(nodes)
    r.submit("x", gang("1x8", sites=("two", "one")))
    r.submit("y", gang("3x8"))
    r.cycle()
    assert r.where("x") == ["b1"]
    assert "y" in r.waiting


def test_an_array_is_one_class_with_a_bound_on_what_runs():
    r = rounds(cluster("1n x 8g"))
    r.submit("arr", gang("1x1"), pending=(IndexRange(start=0, stop=20, step=2),))
    r.cycle()
    assert [j for j in r.running] == [f"arr.{i}" for i in range(0, 16, 2)]
    assert r.reason("arr") == "NoFreeDevices"
    r.finish("arr.0")
    r.cycle()
    assert "arr.16" in r.running


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ("1x16", "the largest node has 8 H100"),
        ("5x8", "the whole cluster, empty, has room for 4"),
    ],
)
def test_what_can_never_fit_says_so(size: str, message: str):
    r = rounds(cluster("4n x 8g"))
    r.submit("a", gang(size))
    r.cycle()
    assert r.reason("a") == "NeverFits"
    assert message in r.why("a").message


def test_holds_dependencies_and_times():
    r = rounds(cluster("1n x 8g"))
    r.submit("h", gang("1x1"), is_held=True)
    r.submit("d", gang("1x1"), blocked_on=("h",))
    r.submit("t", gang("1x1"), not_before_s=50.0)
    plan = r.cycle()
    assert (r.reason("h"), r.reason("d"), r.reason("t")) == ("Held", "Dependency", "NotBefore")
    assert plan.wake_at_s == 50.0
    r.run(60.0)
    assert r.started_s("t") == 50.0


def test_reason_changes_are_told_once():
    r = rounds(cluster("1n x 8g"))
    for at in range(3):
        r.submit(f"j{at}", gang("1x8"))
    assert r.cycle().reason_changes == ("j1", "j2")
    assert r.cycle().reason_changes == ()
    r.submit("k", gang("1x8"))
    assert r.cycle().reason_changes == ("k",)
    r.set_state("n1", NodeState.DOWN)
    assert set(r.cycle().reason_changes) == {"j1", "j2", "k"}


def test_a_leader_stands_with_its_group():
    r = rounds(cluster("3r x 2n x 4g"))
    r.submit("busy", gang("1x4"))
    r.cycle()
    workers = group("2x4", name="workers", topology=TopologyRequest(same="rack", leader="driver"))
    r.submit("a", JobSpec(name="lead", groups=(group("1x0", name="driver"), workers)))
    r.cycle()
    racks = {r.nodes[n].spec.labels["rack"] for n in r.where("a")}  # type: ignore[index]
    assert len(racks) == 1
    assert [t.group for t in r.running["a"].tasks] == [0, 1, 1]  # type: ignore[index]


def test_same_block_prefer_rack():
    nodes = [
        node(f"n{at}", 8, labels={"rack": f"r{at // 2}", "block": f"b{at // 4}"}) for at in range(8)
    ]
    r = rounds(nodes)
    r.submit("x", gang("1x8", match="labels['rack'] == 'r0'"))
    r.cycle()
    r.submit("two", gang("2x8", same="block", prefer="rack"))
    r.submit("three", gang("3x8", same="block", prefer="rack"))
    r.cycle()
    assert len({r.nodes[n].spec.labels["rack"] for n in r.where("two")}) == 1  # type: ignore[index]
    assert len({r.nodes[n].spec.labels["block"] for n in r.where("three")}) == 1  # type: ignore[index]


def test_island_keeps_a_task_on_linked_devices():
    r = rounds([node("n1", 8, islands=2)])
    r.submit("a", gang("1x2"))
    r.submit("b", gang("1x4", same="island"))
    r.submit("c", gang("1x2", same="island"))
    r.cycle()
    assert devices(r, "b") == [[4, 5, 6, 7]]
    assert devices(r, "c") == [[2, 3]]


def test_power_budget_holds_per_domain():
    nodes = []
    for found in cluster("2r x 1n x 4g"):
        drawing = tuple(msgspec.structs.replace(d, power_w=700) for d in found.spec.devices)
        spec = msgspec.structs.replace(found.spec, devices=drawing)
        nodes.append(msgspec.structs.replace(found, spec=spec))
    policy = msgspec.structs.replace(POLICY, budgets=(PowerBudget(domain="r1", power_w=1400),))
    r = rounds(nodes, policy)
    for at in range(7):
        r.submit(f"j{at}", gang("1x1"))
    r.cycle()
    on_first = [j for j in r.running if r.where(j) == ["n1"]]
    assert len(on_first) == 2
    assert len(r.running) == 6
    assert r.reason("j6") == "Power"
    assert "the power budget is 1.4kW" in r.why("j6").message
