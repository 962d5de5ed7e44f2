"""Power budgets: what runs, what was freed for others and what is promised may not pass them."""

import msgspec
from play import USUAL

from tercio.model.node import Node, NodeState
from tercio.model.queue import Policy, PowerBudget
from tercio.testing import rules
from tercio.testing.build import gang, node
from tercio.testing.rounds import Rounds


def drawing(name: str, device_type: str, watts: int = 700, rack: str = "r1") -> Node:
    """A node of two devices that draw so much each."""
    found = node(name, 2, device_type=device_type, labels={"rack": rack})
    devices = tuple(msgspec.structs.replace(d, power_w=watts) for d in found.spec.devices)
    spec = msgspec.structs.replace(found.spec, devices=devices)
    return msgspec.structs.replace(found, spec=spec)


def racks(nodes: list[Node], **limits_w: int) -> Rounds:
    """Nodes, and budgets by rack."""
    budgets = tuple(PowerBudget(domain=name, power_w=most) for name, most in limits_w.items())
    policy = Policy(half_life_s=0.0, preemption=USUAL, budgets=budgets)
    return Rounds(nodes, policy, checks=rules.ALL)


def promised() -> Rounds:
    """Power for four devices; `big` needs all of it from second 100 on, when `first` ends."""
    r = racks([drawing("n1", "H100"), drawing("n2", "H100"), drawing("n3", "A100")], r1=2800)
    r.start("first", gang("1x2", limit_s=100), on=("n1",), preemptible=False)
    r.submit("big", gang("2x2", limit_s=50))
    r.cycle()
    assert [promise.from_s for promise in r.promises] == [100.0]
    return r


def test_power_that_is_promised_is_kept_from_jobs_that_would_still_draw_it_then():
    r = promised()
    r.submit("long", gang("1x2", device_type="A100", limit_s=1000), preemptible=False)
    r.run(10.0)
    assert r.reason("long") == "Power"
    said = r.why("long")
    assert said.message == (
        "its devices would draw 4.2kW in r1 at 1970-01-01T00:01:40.000Z, when big is promised to "
        "start and this job would end later; the power budget is 2.8kW"
    )
    assert said.change is not None
    assert (said.change.what, said.change.to) == ("time_limit_s", 90)
    r.run(300.0)
    assert r.started_s("big") == 100.0
    assert r.started_s("long") == 150.0


def test_who_ends_before_a_promise_may_draw_its_power():
    r = promised()
    r.submit("short", gang("1x2", device_type="A100", limit_s=100))
    r.run(300.0)
    assert r.started_s("short") == 0.0
    assert r.started_s("big") == 100.0


def test_a_promise_outlasts_devices_that_come_free_before_their_power():
    r = racks([drawing("n1", "H100"), drawing("n2", "H100"), drawing("n3", "A100")], r1=2800)
    r.start("first", gang("1x2", limit_s=100), on=("n1",))
    r.start("other", gang("1x2", device_type="A100", limit_s=100), preemptible=False)
    r.submit("big", gang("2x2", limit_s=50))
    r.run(20.0)
    r.finish("first")
    r.settle()
    assert r.reason("big") == "Power"
    assert [promise.from_s for promise in r.promises] == [100.0]
    r.submit("next", gang("1x1", limit_s=200))
    r.run(300.0)
    assert r.started_s("big") == 100.0
    assert r.started_s("next") == 150.0


def test_a_job_is_stopped_for_the_power_it_draws():
    r = racks([drawing("n1", "H100"), drawing("n2", "A100")], r1=1400)
    r.start("low", gang("1x2", device_type="A100"), dies_s=5.0)
    r.submit("high", gang("1x2"), priority=10)
    r.run(20.0)
    assert r.evicted() == ["low"]
    assert r.started_s("high") == 5.0
    assert r.reason("low") == "Power"


def test_what_draws_less_is_taken_where_that_alone_stays_in_the_budget():
    r = racks([drawing("n1", "H100"), drawing("n2", "H100", watts=300)], r1=700)
    r.start("small", gang("1x2", limit_s=100))
    assert r.where("small") == ["n2"]


def test_every_rack_is_looked_at_before_power_is_said_to_be_short():
    nodes = [drawing(f"n{at}", "H100", rack=f"r{at}") for at in (1, 2, 3)]
    r = racks(nodes, r1=700, r2=700, r3=1400)
    r.start("job", gang("1x2"))
    assert r.where("job") == ["n3"]


def test_a_promised_job_starts_where_it_was_promised_though_other_devices_came_free():
    """Those draw more: with them, the promise before it would pass the budget."""
    nodes = [drawing("n1", "H100"), drawing("n2", "H100", watts=300), drawing("n3", "A100")]
    r = racks(nodes, r1=2000)
    r.start("one", gang("1x2", limit_s=100), on=("n2",), preemptible=False)
    r.start("two", gang("1x1", limit_s=200), on=("n1",), preemptible=False)
    r.start("three", gang("1x1", device_type="A100", limit_s=200), preemptible=False)
    r.submit("first", gang("1x2", device_type="A100", limit_s=500))
    r.submit("next", gang("1x2", limit_s=500))
    r.run(20.0)
    dates = {promise.job_id: promise.from_s for promise in r.promises}
    assert dates == {"first": 200.0, "next": 100.0}
    r.finish("two")
    r.run(300.0)
    assert r.started_s("next") == 100.0
    assert r.where("next") == ["n2"]
    assert r.started_s("first") == 200.0


def test_a_promise_of_dear_and_cheap_devices_is_kept_when_another_dear_one_comes():
    """Found anew, the place would be on the two dear ones, and then on the only cheap one."""
    kinds = (("n1", "H100", 700), ("n2", "H100", 700), ("n3", "H100", 300), ("n4", "A100", 700))
    nodes = []
    for name, kind, watts in kinds:
        found = drawing(name, kind, watts)
        one = msgspec.structs.replace(found.spec, devices=found.spec.devices[:1])
        nodes.append(msgspec.structs.replace(found, spec=one))
    r = racks(nodes, r1=1700)
    r.set_state("n2", NodeState.CORDONED, cordon=True)
    r.start("one", gang("1x1", limit_s=100), on=("n3",), preemptible=False)
    r.start("three", gang("1x1", device_type="A100"), preemptible=False)
    r.submit("next", gang("2x1", limit_s=500))
    r.run(20.0)
    assert [promise.from_s for promise in r.promises] == [100.0]
    r.set_state("n2", NodeState.READY)
    r.run(300.0)
    assert r.started_s("next") == 100.0
    assert sorted(r.where("next")) == ["n1", "n3"]


def test_a_gang_stands_in_two_racks_where_each_has_power_for_a_part():
    nodes = [drawing(f"n{at}", "H100", rack=f"r{(at + 1) // 2}") for at in (1, 2, 3, 4)]
    r = racks(nodes, r1=1400, r2=1400)
    r.start("gang", gang("2x2"))
    assert len({name in ("n1", "n2") for name in r.where("gang")}) == 2


def test_whole_nodes_are_taken_in_two_racks_where_one_has_power_for_one():
    nodes = [drawing(f"n{at}", "H100", rack="r1" if at < 4 else "r2") for at in (1, 2, 3, 4)]
    r = racks(nodes, r1=1400)
    r.start("job", gang("2x1", exclusive=True))
    assert "n4" in r.where("job")
