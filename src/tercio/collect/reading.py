"""What a vendor's library says about one accelerator, before it becomes a `DeviceSpec`."""

from __future__ import annotations

import msgspec

from tercio.model.node import MigSpec


class DeviceReading(msgspec.Struct, frozen=True, kw_only=True):
    """One accelerator, in the library's own words.

    Attributes:
        vendor: `nvidia` or `amd`.
        name: marketing name, such as `NVIDIA H100 80GB HBM3`.
        uuid, serial: empty when the library has none.
        memory_bytes: usable memory, 0 when unknown.
        pids: processes that compute on it.
        peers: positions of the devices it has a direct link to.
        has_switch: whether its links lead to a switch that joins all devices.
        fault: why it cannot be used, empty when it can.
        power_w: its default power limit, 0 when unknown.
        mig: how it is cut into slices, or None when it cannot be.
    """

    vendor: str
    name: str = ""
    uuid: str = ""
    serial: str = ""
    memory_bytes: int = 0
    pids: tuple[int, ...] = ()
    peers: tuple[int, ...] = ()
    has_switch: bool = False
    fault: str = ""
    power_w: int = 0
    mig: MigSpec | None = None


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """All accelerators of the machine; `notes` say by vendor why one could not be asked."""

    devices: tuple[DeviceReading, ...] = ()
    notes: dict[str, str] = {}
