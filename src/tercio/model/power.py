"""Power limits of devices: what the driver allows, what is ordered, what may be drawn meanwhile."""

from __future__ import annotations

import msgspec


class PowerRange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The limits that a driver takes for a device, in watts, and the one after a reset."""

    min_w: int
    max_w: int
    default_w: int


class DeviceCap(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The limit of one device of a node whose power is under control.

    Attributes:
        index: position of the device on the node.
        uuid: what its driver knows it by.
        limit_w: ordered.
        ceiling_w: the most it may draw: the highest limit that may be in force until its node
            has confirmed the order.
        floor_w: no order goes below.
        default_w: its limit after a reset.
    """

    index: int
    uuid: str
    limit_w: int
    ceiling_w: int
    floor_w: int
    default_w: int


class NodeCaps(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The limits of all devices of a node. `revision` grows with every order to any node."""

    revision: int
    devices: tuple[DeviceCap, ...]

    def of(self, index: int) -> DeviceCap | None:
        """Return the cap of a device, None for one that has none."""
        return next((cap for cap in self.devices if cap.index == index), None)


class CapOrders(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits in watts by UUID that a node is to keep; all that stand, each time."""

    revision: int
    limits: dict[str, int] = {}


class CapCurvePoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a job class was measured to need at one limit: time and energy of a step, per device."""

    limit_w: int
    step_s: float
    step_energy_j: float
