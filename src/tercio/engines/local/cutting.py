"""Cutting devices of this machine: one order at a time for each, the newest only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import msgspec

from tercio.model.effects import ReconfigureDevice
from tercio.model.events import DeviceReconfigured
from tercio.model.node import NodeSpec

Cut = Callable[[ReconfigureDevice], DeviceReconfigured]
"""Cuts a device; it may block. The answer's instant is put in by the caller."""

NOT_ROOT = "only root may change slices, and the server is not root"
NO_CARD = "no device of this machine can be cut into slices"


class Cutter:
    """Carries out orders by `cut`, which an order that has failed never reaches again."""

    def __init__(self, cut: Cut | None) -> None:
        self._cut = cut
        self._newest: dict[tuple[str, int], int] = {}
        self._locks: dict[tuple[str, int], asyncio.Lock] = {}

    def missing(self, nodes: Iterable[NodeSpec]) -> str:
        """Return why nothing can be cut here; empty when something can."""
        specs = [device.mig for node in nodes for device in node.devices if device.mig]
        if self._cut is None or not specs:
            return NO_CARD
        return "" if any(not spec.fixed for spec in specs) else specs[0].fixed

    async def run(
        self,
        order: ReconfigureDevice,
        node: NodeSpec | None,
        *,
        refusal: str,
        now_s: Callable[[], float],
    ) -> DeviceReconfigured:
        """Cut a device of the node; `refusal` says why the order itself is not to be taken."""
        where = (order.node, order.index)
        async with self._locks.setdefault(where, asyncio.Lock()):
            devices = node.devices if node is not None else ()
            device = devices[order.index] if order.index < len(devices) else None
            retry = False
            if refusal:
                why = refusal
            elif node is None:
                why = f"node {order.node} is not here"
            elif device is None or device.mig is None or self._cut is None:
                why = f"device {order.index} cannot be cut into slices"
            elif device.mig.fixed:
                why = device.mig.fixed
            elif order.number < self._newest.get(where, 0):
                why, retry = "a newer order was given", True
            else:
                answer = await asyncio.to_thread(self._cut, order)
                self._newest[where] = order.number + (not answer.is_done)
                return msgspec.structs.replace(answer, at_s=now_s())
            return DeviceReconfigured(
                at_s=now_s(),
                node=order.node,
                effect_id=order.effect_id,
                index=order.index,
                is_done=False,
                message=why,
                is_retryable=retry,
            )


def with_answer(node: NodeSpec, answer: DeviceReconfigured) -> NodeSpec:
    """Return the facts of a node as a device is cut now, if that is known."""
    if answer.mig is None or answer.index >= len(node.devices):
        return node
    devices = list(node.devices)
    devices[answer.index] = msgspec.structs.replace(devices[answer.index], mig=answer.mig)
    return msgspec.structs.replace(node, devices=tuple(devices))
