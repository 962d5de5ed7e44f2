"""The power limits that this machine keeps for the server, and what they were before.

Limits survive an agent that died, but not a driver that was loaded anew. So what was changed is
on disk before it is changed: an agent that starts sets the same limits again before anybody
counts on them, and takes them back once the server says that nothing is limited. While the server
is away they stay: others may have been given what they free.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tercio.model.power import CapOrders
from tercio.model.readings import DeviceTelemetry


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The limit of one device, and the one that was in force before ours. In watts."""

    limit_w: int
    before_w: int
    is_ending: bool = False


class PowerLimits:
    """See the module's description.

    Attributes:
        revision: of the orders that `wanted_w` holds; 0 before the first of this run.
    """

    def __init__(self, file: Path | None = None) -> None:
        self.revision = 0
        self._file = file
        self._kept = _read(file)
        self._in_force_w: dict[str, int] = {}

    @property
    def wanted_w(self) -> dict[str, int]:
        """The limits to be set, by UUID: those ordered, and old ones where ours have ended."""
        return {
            uuid: kept.before_w if kept.is_ending else kept.limit_w
            for uuid, kept in self._kept.items()
        }

    def take(self, caps: CapOrders | None) -> None:
        """Take all orders that stand; None for none.

        Raises:
            OSError: they cannot be written down, and are not taken then.
        """
        ordered = {} if caps is None else caps.limits
        kept = {
            uuid: msgspec.structs.replace(each, is_ending=True)
            for uuid, each in self._kept.items()
            if uuid not in ordered
        }
        for uuid, limit_w in ordered.items():
            known = self._kept.get(uuid)
            before_w = self._in_force_w.get(uuid) if known is None else known.before_w
            if before_w is not None:
                kept[uuid] = Kept(limit_w=limit_w, before_w=before_w)
        self._put(kept)
        self.revision = 0 if caps is None else caps.revision

    def note(self, devices: Sequence[DeviceTelemetry]) -> None:
        """Take what was read after the limits were set: those that are as before are done with."""
        for device in devices:
            if device.uuid and device.power_limit_w is not None:
                self._in_force_w[device.uuid] = round(device.power_limit_w)
        self._put(
            {
                uuid: each
                for uuid, each in self._kept.items()
                if not (each.is_ending and self._in_force_w.get(uuid) == each.before_w)
            }
        )

    def _put(self, kept: dict[str, Kept]) -> None:
        if kept == self._kept:
            return
        if self._file is not None:
            fresh = self._file.with_name(self._file.name + ".new")
            fresh.write_bytes(msgspec.json.encode(kept))
            os.replace(fresh, self._file)
        self._kept = kept


def _read(file: Path | None) -> dict[str, Kept]:
    """Return what an earlier run left; nothing where the file is missing or makes no sense."""
    if file is None:
        return {}
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Kept])
    except (OSError, msgspec.DecodeError):
        return {}
