"""Devices cut into slices, and made whole again, before the tasks that need it are launched.

A launch whose devices have not the form that it needs is held. For each such device one
`ReconfigureDevice` is open at a time, whose target is worked out from what the live tasks hold:
slices that tasks hold stay, idle ones go only where they are in the way, and a device that is
wanted whole leaves MIG mode. When it is answered, what is ready is launched, and what is still
missing ordered next. A device that fails is tried again after short pauses, then its waiting
tasks fail and it is left as it is for a longer one, which doubles with every failure in a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from tercio.core.state import SLICE_TIMER, State
from tercio.model.effects import DeviceOrder, LaunchTask, ReconfigureDevice
from tercio.model.events import DeviceReconfigured, SlicePauseEnded, TaskLaunchFailed
from tercio.model.ids import EffectId, NodeName
from tercio.model.node import DeviceSpec, MigSlice, MigSpec, Node, SliceFault
from tercio.model.resources import DeviceShare

SLICE_TIMEOUT_S: Final = 120.0
LAUNCH_TIMEOUT_S: Final = 120.0
FAULT_PAUSE_S: Final = 600.0
FAULT_PAUSE_MAX_S: Final = 4 * 3600.0
_TRY_PAUSES_S: Final = (5.0, 20.0)
"""Between the tries of one order; after the last its tasks are given up."""


def launch(state: State, order: LaunchTask) -> None:
    """Order a launch now, or hold it until its devices have the form that it needs."""
    node = state.nodes.get(order.node)
    if node is not None and not _wrong(state, node, order):
        state.issue(_issued(state, node, order))
        return
    state.held_launches[order.effect_id] = order
    _go_on(state, order)


def reported(state: State, name: NodeName) -> None:
    """The facts of a node may be other ones: what waits for them may go on."""
    for order in list(_held_on(state, name)):
        _go_on(state, order)


def reconfigured(state: State, event: DeviceReconfigured) -> list[TaskLaunchFailed]:
    """Take an answer in; returns the launches that fail with it."""
    effect = state.close_effect(event.effect_id)
    if not isinstance(effect, ReconfigureDevice):
        return []
    node = state.nodes.get(event.node)
    if node is None or event.index >= len(node.spec.devices):
        return []
    if event.mig is not None:
        before = node.spec.devices
        device = msgspec.structs.replace(before[event.index], mig=event.mig)
        devices = (*before[: event.index], device, *before[event.index + 1 :])
        node = msgspec.structs.replace(
            node, spec=msgspec.structs.replace(node.spec, devices=devices)
        )
        state.put_node(node)
    if not event.is_done:
        return _failed(state, effect, event.message, event.at_s, is_retryable=event.is_retryable)
    if event.mig is None or not _has_layout(event.mig, effect):
        why = "the device has not the slices that it was told to have"
        return _failed(state, effect, why, event.at_s, is_retryable=True)
    faults = tuple(fault for fault in node.slice_faults if fault.index != event.index)
    state.put_node(msgspec.structs.replace(node, slice_faults=faults))
    reported(state, event.node)
    return []


def timed_out(state: State, effect: ReconfigureDevice, at_s: float) -> list[TaskLaunchFailed]:
    """No answer came. Returns the launches that fail with it."""
    state.close_effect(effect.effect_id)
    why = "no answer from the node"
    return _failed(state, effect, why, at_s, is_retryable=True, is_unsure=True)


def pause_ended(state: State, event: SlicePauseEnded) -> None:
    """A device may be tried again."""
    node = state.nodes[event.node]
    faults = tuple(
        msgspec.structs.replace(fault, until_s=None) if fault.index == event.index else fault
        for fault in node.slice_faults
    )
    state.put_node(msgspec.structs.replace(node, slice_faults=faults))
    reported(state, event.node)


def _held_on(state: State, name: NodeName) -> Iterator[LaunchTask]:
    return (order for order in state.held_launches.values() if order.node == name)


def _go_on(state: State, order: LaunchTask) -> None:
    """Launch a held task, or order the form of those of its devices that have it not yet."""
    node = state.nodes.get(order.node)
    if node is None:
        return
    wrong = _wrong(state, node, order)
    if not wrong:
        del state.held_launches[order.effect_id]
        state.issue(_issued(state, node, order))
    for index in dict.fromkeys(wrong):
        _order(state, order.node, index)


def _wrong(state: State, node: Node, order: LaunchTask) -> list[int]:
    """Return the devices of a launch that have not the form that it needs."""
    devices = node.spec.devices
    return [
        held.share.index
        for held in order.devices
        if (order.node, held.share.index) in state.reconfigurations
        or not _is_ready(devices, held.share)
        or (node.slice_faults and _is_unsure(node, held.share.index))
    ]


def _issued(state: State, node: Node, order: LaunchTask) -> LaunchTask:
    """Return a launch as it is ordered now."""
    named = order.devices
    if any([held.share.mig_profile is not None for held in named]):
        named = tuple(_with_uuid(held, node.spec.devices) for held in named)
    deadline_s = state.now_s + LAUNCH_TIMEOUT_S
    if (order.epoch, order.deadline_s) == (state.epoch, deadline_s) and named is order.devices:
        return order
    return msgspec.structs.replace(order, epoch=state.epoch, deadline_s=deadline_s, devices=named)


def _is_ready(devices: tuple[DeviceSpec, ...], share: DeviceShare) -> bool:
    """Whether a device has the form that a share needs.

    One that may not be changed, or is no longer there, is left to the launch to fail on.
    """
    if share.index >= len(devices):
        return True
    mig = devices[share.index].mig
    if share.mig_profile is None:
        return mig is None or not mig.is_on or bool(mig.fixed)
    return mig is not None and mig.is_on and _slice_of(mig, share) is not None


def _is_unsure(node: Node, index: int) -> bool:
    fault = node.slice_fault(index)
    return fault is not None and fault.is_unsure


def _slice_of(mig: MigSpec, share: DeviceShare) -> MigSlice | None:
    return next(
        (
            part
            for part in mig.slices
            if (part.profile, part.start) == (share.mig_profile, share.mig_start)
        ),
        None,
    )


def _with_uuid(held: DeviceOrder, devices: tuple[DeviceSpec, ...]) -> DeviceOrder:
    """Name a slice by its own identity instead of that of its card."""
    mig = devices[held.share.index].mig if held.share.index < len(devices) else None
    part = _slice_of(mig, held.share) if mig is not None else None
    return held if part is None else msgspec.structs.replace(held, uuid=part.uuid or held.uuid)


def _order(state: State, name: NodeName, index: int) -> None:
    """Order the form that the live tasks on a device need, unless that is under way or paused."""
    node = state.nodes[name]
    fault = node.slice_fault(index)
    is_paused = fault is not None and fault.until_s is not None
    if (name, index) in state.reconfigurations or is_paused or index >= len(node.spec.devices):
        return
    device = node.spec.devices[index]
    held = [
        share
        for job_id in state.jobs_on(name)
        for task in state.jobs[job_id].live_tasks
        for share in task.placement.devices
        if task.placement.node == name and share.index == index and share.mig_profile is not None
    ]
    bits = sum(share.slice_bits for share in held)
    wanted = [
        MigSlice(profile=share.mig_profile or "", start=share.mig_start or 0, size=share.mig_size)
        for share in held
    ]
    if held and device.mig is not None and device.mig.is_on:
        idle = (part for part in device.mig.slices if not part.bits & bits)
        wanted += [msgspec.structs.replace(part, uuid="") for part in idle]
    state.revision += 1
    state.issue(
        ReconfigureDevice(
            effect_id=EffectId(f"slices:{name}/{index}/{state.revision}"),
            epoch=state.epoch,
            deadline_s=state.now_s + SLICE_TIMEOUT_S,
            site=node.spec.site,
            node=name,
            index=index,
            number=state.revision,
            uuid=device.uuid,
            is_on=bool(held),
            slices=tuple(sorted(wanted, key=lambda part: part.start)),
        )
    )


def _has_layout(mig: MigSpec, order: ReconfigureDevice) -> bool:
    """Whether a device is as it was told to be; more slices than that do no harm."""
    there = {(part.profile, part.start) for part in mig.slices}
    wanted = {(part.profile, part.start) for part in order.slices}
    return mig.is_on == order.is_on and there >= wanted


def _failed(
    state: State,
    order: ReconfigureDevice,
    message: str,
    at_s: float,
    *,
    is_retryable: bool,
    is_unsure: bool = False,
) -> list[TaskLaunchFailed]:
    """Note the failure and pause; returns the launches to give up where it was the last try."""
    node = state.nodes.get(order.node)
    if node is None:
        return []
    old = node.slice_fault(order.index)
    tries = 1 if old is None else old.tries + 1
    waiting = [
        held
        for held in _held_on(state, order.node)
        if any(device.share.index == order.index for device in held.devices)
    ]
    rounds, at = divmod(tries, len(_TRY_PAUSES_S) + 1)
    is_last = not is_retryable or at == 0 or not waiting
    pause_s = min(FAULT_PAUSE_S * 2 ** min(rounds, 16), FAULT_PAUSE_MAX_S)
    if not is_last:
        pause_s = _TRY_PAUSES_S[at - 1]
    until_s = at_s + pause_s
    fault = SliceFault(
        index=order.index, reason=message, tries=tries, until_s=until_s, is_unsure=is_unsure
    )
    others = tuple(each for each in node.slice_faults if each.index != order.index)
    state.put_node(msgspec.structs.replace(node, slice_faults=(*others, fault)))
    state.set_timer(until_s, SLICE_TIMER, f"{order.node}/{order.index}")
    if not is_last:
        return []
    what = "cut into slices" if order.is_on else "made whole"
    return [
        TaskLaunchFailed(
            at_s=at_s,
            job_id=held.job_id,
            attempt=held.attempt,
            task=held.task,
            effect_id=held.effect_id,
            message=f"device {order.index} could not be {what}: {message}",
            is_retryable=True,
        )
        for held in waiting
    ]
