"""Cards are given the form that tasks need before the tasks are launched."""

from __future__ import annotations

import msgspec

from tercio.core.cluster import Cluster
from tercio.core.driver import Driver
from tercio.core.slicing import FAULT_PAUSE_S
from tercio.core.story import sentence
from tercio.core.topo import topology_view
from tercio.core.views import job_view, node_view, wanted_devices
from tercio.model.effects import AnyEffect, LaunchTask, ReconfigureDevice, StopTask
from tercio.model.events import (
    DeviceReconfigured,
    EffectTimedOut,
    JobCancelRequested,
    JobPlaced,
    ServerStarted,
    SlicePauseEnded,
    subjects,
)
from tercio.model.ids import JobId, NodeName
from tercio.model.job import JobState
from tercio.model.node import MigSlice, MigSpec
from tercio.model.placement import TaskPlacement
from tercio.model.resources import DeviceRequest, DeviceShare
from tercio.model.views import SliceView
from tercio.testing.factories import make_job

from .machine import Machine

N1 = NodeName("n1")


def part(start: int) -> DeviceShare:
    return DeviceShare(index=0, milli=142, mig_profile="1g.10gb", mig_start=start, mig_size=1)


def place(machine: Machine, *shares: DeviceShare) -> tuple[JobId, list[AnyEffect]]:
    job_id = machine.submit()
    task = TaskPlacement(task=0, node=N1, cpus_milli=1000, devices=shares)
    return job_id, machine.do(
        JobPlaced(at_s=machine.now_s, job_id=job_id, attempt=1, tasks=(task,))
    )


def answer(machine: Machine, order: AnyEffect, **changes: object) -> list[AnyEffect]:
    assert isinstance(order, ReconfigureDevice)
    slices = tuple(msgspec.structs.replace(p, uuid=f"MIG-{p.start}") for p in order.slices)
    done = DeviceReconfigured(
        at_s=machine.now_s, node=order.node, effect_id=order.effect_id, index=order.index,
        mig=MigSpec(is_on=order.is_on, slices=slices),
    )  # fmt: skip
    return machine.do(msgspec.structs.replace(done, **changes))


def failed(machine: Machine, order: AnyEffect, *, is_retryable: bool = True) -> list[AnyEffect]:
    return answer(
        machine, order, is_done=False, mig=None, message="in use", is_retryable=is_retryable
    )


def test_a_launch_waits_until_its_card_is_cut() -> None:
    machine = Machine()
    job, (order,) = place(machine, part(6))
    assert isinstance(order, ReconfigureDevice)
    assert (order.node, order.index, order.uuid, order.is_on) == ("n1", 0, "n1-0", True)
    assert order.slices == (MigSlice(profile="1g.10gb", start=6, size=1),)
    (launch,) = answer(machine, order)
    assert isinstance(launch, LaunchTask)
    assert [device.uuid for device in launch.devices] == ["MIG-6"]
    assert launch.deadline_s > machine.now_s
    machine.start(job)
    assert machine.cluster.jobs[job].state is JobState.RUNNING


def test_slices_of_others_stay_and_one_order_is_open_at_a_time() -> None:
    machine = Machine()
    _, (first,) = place(machine, part(6))
    _, second = place(machine, part(5))
    assert second == [], "the card is being cut already"
    effects = answer(machine, first)
    launch, order = effects
    assert isinstance(launch, LaunchTask)
    assert isinstance(order, ReconfigureDevice)
    assert [p.start for p in order.slices] == [5, 6]
    assert [type(e) for e in answer(machine, order)] == [LaunchTask]


def test_an_idle_slice_is_used_as_it_is_and_removed_when_the_whole_card_is_wanted() -> None:
    machine = Machine()
    job, (order,) = place(machine, part(6))
    answer(machine, order)
    machine.start(job)
    machine.exit(job)
    again, (launch,) = place(machine, part(6))
    assert isinstance(launch, LaunchTask), "nothing is to be made"
    machine.start(again)
    machine.exit(again)
    _, (whole,) = place(machine, DeviceShare(index=0))
    assert isinstance(whole, ReconfigureDevice)
    assert (whole.is_on, whole.slices) == (False, ())
    (launch,) = answer(machine, whole)
    assert isinstance(launch, LaunchTask)
    assert launch.devices[0].uuid == "n1-0"


def test_a_failure_is_tried_again_then_the_task_fails_and_the_card_is_left_alone() -> None:
    machine = Machine()
    job, (order,) = place(machine, part(6))
    for number in range(3):
        assert failed(machine, order) == []
        fault = machine.cluster.nodes[N1].slice_fault(0)
        assert fault is not None
        assert (fault.reason, fault.tries) == ("in use", number + 1)
        if number == 2:
            break
        assert fault.until_s is not None
        machine.now_s = fault.until_s
        (over,) = machine.cluster.due(machine.now_s)
        assert isinstance(over, SlicePauseEnded)
        (order,) = machine.do(over)
    gone = machine.cluster.jobs[job]
    assert gone.state is JobState.QUEUED, "it may start elsewhere"
    assert "device 0 could not be cut into slices: in use" in gone.message
    assert fault.until_s is not None
    assert fault.until_s - machine.now_s >= FAULT_PAUSE_S
    assert not machine.cluster.held_launches


def test_a_refusal_for_good_is_not_tried_again_and_success_forgets_it() -> None:
    machine = Machine()
    job, (order,) = place(machine, part(6))
    failed(machine, order, is_retryable=False)
    assert machine.cluster.jobs[job].state is JobState.QUEUED
    fault = machine.cluster.nodes[N1].slice_fault(0)
    assert fault is not None
    assert fault.until_s is not None
    machine.now_s = fault.until_s
    machine.do(*machine.cluster.due(machine.now_s))
    assert machine.cluster.nodes[N1].slice_fault(0).until_s is None  # type: ignore[union-attr]
    _, (order,) = place(machine, part(6))
    answer(machine, order)
    assert machine.cluster.nodes[N1].slice_fault(0) is None


def test_no_answer_is_a_failure_and_a_late_one_changes_nothing() -> None:
    machine = Machine()
    _, (order,) = place(machine, part(6))
    machine.do(EffectTimedOut(at_s=machine.now_s, effect_id=order.effect_id))
    fault = machine.cluster.nodes[N1].slice_fault(0)
    assert fault is not None
    assert (fault.reason, fault.is_unsure) == ("no answer from the node", True)
    assert answer(machine, order) == []
    assert machine.cluster.held_launches


def test_after_no_answer_nothing_is_launched_before_a_newer_order() -> None:
    machine = Machine()
    job, (order,) = place(machine, part(6))
    answer(machine, order)
    machine.start(job)
    other, (second,) = place(machine, part(5))
    machine.do(EffectTimedOut(at_s=machine.now_s, effect_id=second.effect_id))
    machine.exit(job)
    _, effects = place(machine, part(6))
    assert effects == [], "the lost order may still remove this slice"
    (over,) = machine.cluster.due(machine.now_s + 60.0)
    (newer,) = machine.do(over)
    assert isinstance(newer, ReconfigureDevice)
    assert isinstance(second, ReconfigureDevice)
    assert newer.number > second.number
    assert [p.start for p in newer.slices] == [5, 6]
    assert [type(e) for e in answer(machine, newer)] == [LaunchTask, LaunchTask]
    assert other


def test_an_answer_without_the_slices_is_a_failure() -> None:
    machine = Machine()
    _, (order,) = place(machine, part(6))
    assert answer(machine, order, mig=MigSpec(is_on=True)) == []
    fault = machine.cluster.nodes[N1].slice_fault(0)
    assert fault is not None
    assert "has not the slices" in fault.reason


def test_a_restart_orders_the_same_again_and_holds_the_launch() -> None:
    machine = Machine()
    _, (order,) = place(machine, part(6))
    machine.cluster = Cluster.from_image(machine.cluster.image())
    machine.do(ServerStarted(at_s=machine.now_s, epoch=2, version="test"))
    (again,) = machine.cluster.open_effects.values()
    assert again.effect_id == order.effect_id
    assert again.epoch == 2
    (launch,) = answer(machine, again)
    assert isinstance(launch, LaunchTask)
    assert launch.epoch == 2


def test_a_cancelled_task_is_not_launched_when_its_card_is_ready() -> None:
    machine = Machine()
    job, (order,) = place(machine, part(6))
    (stop,) = machine.do(JobCancelRequested(at_s=machine.now_s, job_id=job, by="ana"))
    assert isinstance(stop, StopTask)
    machine.exit(job, code=None, is_lost=True)
    assert not machine.cluster.held_launches
    assert answer(machine, order) == []


def test_the_story_of_the_node_tells_how_its_card_was_cut() -> None:
    machine = Machine()
    _, (order,) = place(machine, part(6))
    assert subjects(EffectTimedOut(at_s=0.0, effect_id=order.effect_id)) == ("node/n1",)
    event = DeviceReconfigured(
        at_s=0.0, node=N1, effect_id=order.effect_id, index=0,
        mig=MigSpec(is_on=True, slices=(MigSlice(profile="1g.10gb", start=6, size=1),)),
    )  # fmt: skip
    assert sentence(event, "node/n1") == "device 0 is cut into 1g.10gb at 6"


def test_views_show_slices_and_what_a_launch_waits_for() -> None:
    machine = Machine()
    job, (order,) = place(machine, part(6))
    driver = Driver(machine.cluster)
    shown = job_view(driver, machine.cluster.jobs[job], is_full=True)
    assert shown.message == "waits until device 0 of n1 is cut into slices"
    assert shown.tasks[0].slices == ("0/1g.10gb",)
    failed(machine, order)
    shown = job_view(driver, machine.cluster.jobs[job])
    assert shown.message.endswith("could not be cut into slices, and is tried again: in use")
    (device, *_) = node_view(driver, machine.cluster.nodes[N1], is_full=True).devices
    assert (device.mig, device.slices_fault, device.used) == ("off", "in use", 0.142)
    assert device.slices == (SliceView(profile="1g.10gb", start=6, job=job),)
    (row,) = [row for row in topology_view(driver).rows if row.level == "node"]
    assert row.slices == {}, "no more slices are cut while it fails"
    machine.now_s = device_pause(machine)
    machine.do(*machine.cluster.due(machine.now_s))
    (row,) = [row for row in topology_view(driver).rows if row.level == "node"]
    assert row.slices["H100/1g.10gb"] == 6
    assert "H100/7g.80gb" not in row.slices


def device_pause(machine: Machine) -> float:
    fault = machine.cluster.nodes[N1].slice_fault(0)
    assert fault is not None
    assert fault.until_s is not None
    return fault.until_s


def test_a_job_that_wants_slices_is_shown_with_what_they_count() -> None:
    request = DeviceRequest(type="H100", count=2, mig_profile="3g.40gb")
    spec = make_job()
    group = spec.groups[0]
    ask = msgspec.structs.replace(group.per_task, devices=(request,))
    spec = msgspec.structs.replace(spec, groups=(msgspec.structs.replace(group, per_task=ask),))
    assert wanted_devices(spec) == {"H100": 0.856}
