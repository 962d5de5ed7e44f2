"""What Ray says, in our terms: pure, so that no Ray is needed here."""

from __future__ import annotations

import pytest

from tercio.engines.ray.inventory import (
    can_run,
    foreign_use,
    held_for_nobody,
    node_names,
    node_spec,
)
from tercio.engines.ray.messages import Bundle, Facts, RayNode, WorkerUse
from tercio.engines.ray.options import RayOptions
from tercio.model.ids import SiteName

SITE = SiteName("lab")
OURS = "tercio-lab-1:"


def node(id="a" * 8, name="n1", *, gpus=8.0, cpus=16.0, alive=True, labels=None, **resources):
    return RayNode(
        id=id, name=name, address="10.0.0.1", hostname="h", is_alive=alive, labels=labels or {},
        resources={"GPU": gpus, "CPU": cpus, "memory": 100.0, **resources},
    )  # fmt: skip


def spec(facts, *, held=(), ids=(), device_type=""):
    (one,) = facts.nodes
    return node_spec(
        one, name=node_names([one], site=SITE)[one.id], site=SITE, ids=ids, held=frozenset(held),
        foreign=foreign_use(facts, prefix=OURS)[one.id], device_type=device_type,
    )  # fmt: skip


def use(**slots):
    return WorkerUse(node_id="a" * 8, slots=slots)


def bundle(name, group="f" * 16, **resources):
    return Bundle(group_id=group, name=name, node_id="a" * 8, resources=resources)


def test_a_node_keeps_its_name_over_a_restart_and_twins_are_told_apart():
    old = node("b" * 8, alive=False)
    assert node_names([old, node("c" * 8)], site=SITE) == {"c" * 8: "lab-n1"}
    both = node_names([node("d" * 8), node("e" * 8)], site=SITE)
    assert both == {"d" * 8: "lab-n1", "e" * 8: "lab-n1-eeeeee"}
    assert not can_run(node(gpus=0, cpus=0))
    assert not can_run(old)


@pytest.mark.parametrize(
    ("labels", "resources", "told"),
    [
        ({"ray.io/accelerator-type": "A100-80G"}, {}, ("A100", 80 * 10**9)),
        ({}, {"accelerator_type:H100": 1.0}, ("H100", 80 * 10**9)),
        ({}, {}, ("L4", 24 * 10**9)),
    ],
)
def test_devices_have_the_type_that_ray_names(labels, resources, told):
    found = spec(Facts(nodes=(node(labels=labels, **resources),)), device_type="L4")
    assert {(device.type, device.card_bytes) for device in found.devices} == {told}
    assert [device.index for device in found.devices] == list(range(8))


def test_workers_of_others_hold_their_slots_cores_and_memory():
    facts = Facts(
        nodes=(node(),), uses=(use(GPU={2: 1.0, 5: 0.5}, CPU={0: 4.0}, memory={0: 30.0}),)
    )
    found = spec(facts)
    assert found.foreign_devices == (2, 5)
    assert (found.cpus_milli, found.memory_bytes) == (12_000, 70)


def test_a_group_of_others_holds_what_its_workers_do_not_use_yet():
    group = "f" * 16
    held = bundle("theirs", GPU=3.0, CPU=2.0)
    worker = use(**{f"GPU_group_{group}": {4: 1.0}, f"GPU_group_0_{group}": {4: 1.0}})
    facts = Facts(nodes=(node(),), bundles=(held,), uses=(worker,))
    # One is known; two more are taken to be the lowest that nobody is known to have.
    assert spec(facts, held={0}).foreign_devices == (1, 2, 4)
    assert spec(facts).cpus_milli == 14_000


def test_what_we_hold_is_not_foreign():
    group = "9" * 16
    ours = bundle(f"{OURS}job-00001/1/0", group=group, GPU=4.0, CPU=8.0)
    probe = use(**{f"GPU_group_0_{group}": {0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0}})
    found = spec(Facts(nodes=(node(),), bundles=(ours,), uses=(probe,)))
    assert (found.foreign_devices, found.cpus_milli) == ((), 16_000)


@pytest.mark.parametrize(
    ("facts", "given_back"),
    [
        ({"bundles": (bundle(f"{OURS}job-1/1/0"),)}, ("job-1/1/0",)),
        ({"bundles": (bundle(f"{OURS}live/1/0"), bundle("job-1/1/0"))}, ()),
        # The bridge died, or gave up, before Ray had placed it: no task can run there.
        ({"waiting": (f"{OURS}job-1/1/0", f"{OURS}live/1/0", "theirs")}, ("job-1/1/0",)),
        # Its node is dead: it holds nothing, whatever the server still believes of its task.
        ({"stranded": (f"{OURS}live/1/0", "theirs")}, ("live/1/0",)),
        # Those of a moment belong to an order that is under way.
        ({"waiting": (f"{OURS}decoy/n/0",), "bundles": (bundle(f"{OURS}decoy/n/1"),)}, ()),
    ],
)
def test_what_is_held_for_nobody_is_given_back(facts, given_back):
    def found(settled):
        live = {"live/1/0"}
        return held_for_nobody(Facts(**facts), prefix=OURS, live=live, settled=settled)

    assert found({"a" * 8}) == given_back
    # A node that has not said yet what runs there may run it.
    assert found(()) == (() if "bundles" in facts else given_back)


def test_devices_that_were_shown_to_ray_by_name_keep_it():
    found = spec(Facts(nodes=(node(gpus=2.0),)), ids=("GPU-aa", "GPU-bb"))
    assert [device.uuid for device in found.devices] == ["GPU-aa", "GPU-bb"]


@pytest.mark.parametrize(
    "wrong",
    [{}, {"address": "head"}, {"address": "ray://head"}, {"address": "h:1", "node_dir": "here"},
     {"address": "h:1", "poll": 0.0}],
)  # fmt: skip
def test_options_that_cannot_work_are_refused(wrong):
    with pytest.raises(ValueError, match="write"):
        RayOptions(**wrong)


def test_no_node_of_ray_runs_images():
    found = spec(Facts(nodes=(node(labels={"rack": "r1"}),)))
    assert found.labels == {"rack": "r1", "containers": "none"}
    assert not found.runs_images
