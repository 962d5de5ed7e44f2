"""This machine as a node: its devices, cores and memory, in the terms of the model."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from tercio.collect.probe import probe_devices
from tercio.collect.procfs import Machine, read_machine
from tercio.collect.reading import DeviceReading, Probe
from tercio.model.ids import NodeName, SiteName
from tercio.model.node import DeviceSpec, Links, MigSpec, NodeSpec
from tercio.model.resources import CPU_DEVICE

_CPU_DEVICES: Final = 2
_FEW_ACCELERATORS: Final = 2
_TASK_MEMORY_PERCENT: Final = 95
"""The rest is left to the system and the server."""


class CardTable(Protocol):
    """Knows accelerators by the names their drivers report; `formats.cards` is one."""

    def canonical_type(self, name: str) -> str:
        """Return our type for a marketing name."""
        ...

    def card_bytes(self, name: str, memory_bytes: int = 0) -> int:
        """Return the marketing size of the memory, 0 when unknown."""
        ...


class MachineReader:
    """Reads this machine again and again; a device once seen keeps its position.

    A device that vanished, or whose driver stopped answering, stays in the node as unhealthy:
    its place is still held by the task that ran on it, and others do not move up.
    """

    def __init__(
        self,
        *,
        site: SiteName,
        cards: CardTable,
        name: str = "",
        cpu_devices: int | None = None,
        labels: dict[str, str] | None = None,
        probe: Callable[[], Probe] = probe_devices,
        machine: Callable[[], Machine] = read_machine,
        fixed: str = "",
    ) -> None:
        """Choose what to read.

        Args:
            site: site that the node belongs to.
            cards: names of accelerators.
            name: node name; the host name by default.
            cpu_devices: CPU devices to declare; None for two where there are fewer than two
                accelerators, so that a gang can run anywhere, and none elsewhere.
            labels: node labels.
            probe: asks for accelerators.
            machine: asks for cores and memory.
            fixed: why the slices of devices cannot be changed, empty when they can.
        """
        self._site = site
        self._cards = cards
        self._name = name or socket.gethostname()
        self._cpu_devices = cpu_devices
        self._labels = labels or {}
        self._probe = probe
        self._machine = machine
        self._fixed = fixed
        self._devices: tuple[DeviceReading, ...] = ()

    def __call__(self, is_ours: Callable[[int], bool]) -> NodeSpec:
        """Read the machine; blocks until the drivers have answered or their deadline.

        `is_ours` tells whether a process belongs to a task of ours; any other makes its device
        a foreign one. Raises OSError without /proc.
        """
        probe = self._probe()
        self._devices = keep_places(self._devices, probe)
        return node_of(
            self._devices,
            self._machine(),
            is_ours=is_ours,
            site=self._site,
            cards=self._cards,
            name=self._name,
            cpu_devices=self._cpu_devices,
            labels=self._labels,
            fixed=self._fixed,
        )


def keep_places(before: Sequence[DeviceReading], probe: Probe) -> tuple[DeviceReading, ...]:
    """Return the devices of a probe in the places they had before, new ones at the end."""
    known = {reading.uuid for reading in before}
    found = {reading.uuid: reading for reading in probe.devices if reading.uuid}
    if not known - set(found) and len(probe.devices) == len(before):
        return probe.devices
    merged = []
    for reading in before:
        why = probe.notes.get(reading.vendor) or probe.notes.get("probe") or "gone from its bus"
        gone = msgspec.structs.replace(reading, pids=(), fault=why)
        now = found.get(reading.uuid)
        merged.append(msgspec.structs.replace(now, peers=reading.peers) if now else gone)
    fresh = [reading for reading in probe.devices if reading.uuid and reading.uuid not in known]
    return tuple(merged + fresh) if before else probe.devices


def node_of(
    readings: Sequence[DeviceReading],
    machine: Machine,
    *,
    is_ours: Callable[[int], bool],
    site: SiteName,
    cards: CardTable,
    name: str,
    cpu_devices: int | None,
    labels: dict[str, str],
    fixed: str = "",
) -> NodeSpec:
    """Return the node that these readings make. Reads nothing.

    `fixed` says why slices cannot be changed here; empty when they can.
    """
    islands, links = link_islands(readings)
    devices = [
        DeviceSpec(
            type=cards.canonical_type(reading.name),
            index=index,
            uuid=reading.uuid,
            serial=reading.serial,
            vendor=reading.vendor,
            card_bytes=cards.card_bytes(reading.name, reading.memory_bytes),
            memory_bytes=reading.memory_bytes,
            island=islands[index],
            healthy=not reading.fault,
            power_w=reading.power_w,
            mig=_mig(reading.mig, fixed),
        )
        for index, reading in enumerate(readings)
    ]
    accelerators = len(devices)
    if cpu_devices is None:
        cpu_devices = _CPU_DEVICES if accelerators < _FEW_ACCELERATORS else 0
    for index in range(accelerators, accelerators + cpu_devices):
        devices.append(DeviceSpec(type=CPU_DEVICE, index=index, vendor="cpu"))
    foreign = tuple(
        index
        for index, reading in enumerate(readings)
        if any(not is_ours(pid) for pid in reading.pids)
    )
    return NodeSpec(
        name=NodeName(name),
        site=site,
        devices=tuple(devices),
        cpus_milli=machine.cpus_milli,
        memory_bytes=machine.memory_bytes * _TASK_MEMORY_PERCENT // 100,
        links=links,
        pool=devices[0].type if devices else CPU_DEVICE,
        labels=labels,
        foreign_devices=foreign,
    )


def _mig(mig: MigSpec | None, fixed: str) -> MigSpec | None:
    return mig if mig is None or not fixed else msgspec.structs.replace(mig, fixed=fixed)


def link_islands(readings: Sequence[DeviceReading]) -> tuple[list[int], Links]:
    """Return the link domain of each device, and how the node's devices are joined.

    Behind a switch all are one domain; else those that links join, directly or through others.
    """
    if any(reading.has_switch for reading in readings):
        return [0] * len(readings), Links.NVSWITCH
    islands = list(range(len(readings)))
    for index, reading in enumerate(readings):
        for peer in reading.peers:
            low, high = sorted((islands[index], islands[peer]))
            islands = [low if island == high else island for island in islands]
    numbers = {island: number for number, island in enumerate(dict.fromkeys(islands))}
    has_links = any(reading.peers for reading in readings)
    return [numbers[island] for island in islands], Links.PAIRS if has_links else Links.NONE
