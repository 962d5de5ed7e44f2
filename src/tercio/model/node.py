"""Nodes and devices: facts reported by an engine, and the state we keep about them."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from tercio.model.health import SPARE_OWNER
from tercio.model.ids import NodeName, SiteName
from tercio.model.power import NodeCaps

CONTAINERS_LABEL: Final = "containers"
"""Label with the program that runs container images on a node."""
NO_CONTAINERS: Final = "none"


class NodeState(StrEnum):
    """Observed and desired availability of a node; see `core.transitions` for the legal pairs."""

    UNKNOWN = "unknown"
    READY = "ready"
    CORDONED = "cordoned"
    DRAINING = "draining"
    DOWN = "down"


PROBATION = "probation"
SPARE = "spare"
"""Why a node is on trial."""

PLACEABLE_NODE_STATES = frozenset({NodeState.READY})


class Links(StrEnum):
    """How the devices of a node reach each other."""

    NVSWITCH = "nvswitch"
    PAIRS = "pairs"
    NONE = "none"


class MigProfile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One kind of slice that a card can be cut into.

    Attributes:
        name: such as `1g.10gb`.
        compute: compute slices that it takes.
        size: memory slices that it takes.
        starts: memory slices that it may begin at.
        compute_total, size_total: slices of the whole card.
    """

    name: str
    compute: int
    size: int
    starts: tuple[int, ...]
    compute_total: int = 7
    size_total: int = 8


class MigSlice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One slice of a card: its profile, and the memory slices `start` to `start + size - 1`.

    `uuid` is what isolates it; empty when the engine has none, or before it was made.
    """

    profile: str
    start: int
    size: int
    uuid: str = ""

    @property
    def bits(self) -> int:
        """The memory slices that it covers, one bit each."""
        return ((1 << self.size) - 1) << self.start


class MigSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a card that can be cut says about it.

    Attributes:
        is_on: whether it is in MIG mode: then it has slices only, and cannot be used whole.
        profiles: what the card itself answers; empty when it does not (most say nothing while
            the mode is off), then the packaged table of its type counts.
        slices: those that are there, in order of their start.
        fixed: why Tercio may not change the mode or the slices; empty when it may.
    """

    is_on: bool = False
    profiles: tuple[MigProfile, ...] = ()
    slices: tuple[MigSlice, ...] = ()
    fixed: str = ""


class DeviceSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One accelerator as its engine reports it.

    Attributes:
        type: canonical type (`H100`, `CPU`).
        index: position on the node, from 0, without gaps.
        uuid: stable identity used to isolate the device; empty when the engine has none.
        serial: board serial, kept for health history; empty when unknown.
        vendor: `nvidia`, `amd`, `cpu`, ...
        card_bytes: marketing size of the memory (`80GB` is 80 * 10**9), 0 when unknown.
        memory_bytes: usable memory, 0 when unknown.
        island: devices with equal numbers share a fast link domain (NVLink).
        healthy: False keeps new work off the device.
        power_w: its power limit as the driver sets it; 0 when unknown.
        mig: how it is cut into slices, or None for a device that its engine cannot cut.
    """

    type: str
    index: int
    uuid: str = ""
    serial: str = ""
    vendor: str = "nvidia"
    card_bytes: int = 0
    memory_bytes: int = 0
    island: int = 0
    healthy: bool = True
    power_w: int = 0
    mig: MigSpec | None = None


class NodeSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node as its engine reports it.

    Attributes:
        name: unique over all sites.
        site: the connected engine instance that runs tasks on it.
        devices: in index order.
        cpus_milli: cores in thousandths.
        memory_bytes: memory that tasks may use.
        slots: most tasks the node takes at once, or None for no such limit.
        links: how the devices are connected.
        pool: nodes of one kind share a pool; defaults to the device type.
        labels: free labels; topology levels (`rack`, `block`) are read from here.
        address: host name or address that other nodes reach it by.
        foreign_devices: indexes of devices used by work that is not ours.
        foreign_ends_s: when each of those comes free by its walltime, soonest first; 0.0 where
            unknown, empty when all are.
        closed: why the engine's own operator takes no new work on it; empty when it does.
    """

    name: NodeName
    site: SiteName
    devices: tuple[DeviceSpec, ...] = ()
    cpus_milli: int = 0
    memory_bytes: int = 0
    slots: int | None = None
    links: Links = Links.NVSWITCH
    pool: str = ""
    labels: dict[str, str] = {}
    address: str = "127.0.0.1"
    foreign_devices: tuple[int, ...] = ()
    foreign_ends_s: tuple[float, ...] = ()
    closed: str = ""

    @property
    def runs_images(self) -> bool:
        """Whether tasks with a container image may go here; so unless its engine says no."""
        return self.labels.get(CONTAINERS_LABEL) != NO_CONTAINERS


class Cordon(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why no new placement goes to a node, and who may lift that.

    Attributes:
        owner: `health`, `engine` or `user:NAME`; only the owner lifts its cordon.
        reason: prose shown to people.
        since_s: when it was set.
        is_draining: whether the node is to be emptied too.
    """

    owner: str
    reason: str = ""
    since_s: float = 0.0
    is_draining: bool = False


class SliceFault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A device whose slices could not be changed.

    Attributes:
        index: of the device.
        reason: what it answered.
        tries: failures in a row.
        until_s: until when it is left as it is, or None once it may be tried again.
        is_unsure: an order to it was never answered, and may still be carried out: nothing is
            launched on the device before a newer order was.
    """

    index: int
    reason: str
    tries: int = 1
    until_s: float | None = None
    is_unsure: bool = False


class Node(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node with our state about it. Replaced, never changed, by `core.cluster`.

    Attributes:
        spec: the latest facts from the engine.
        state: see `NodeState`.
        cordons: standing cordons by owner; the node takes work only when there is none.
        reason: why the state is what it is.
        lost_s: when contact was lost, or None.
        slice_faults: devices whose slices could not be changed, at most one each.
        trial: why only small jobs that may be evicted run on it (`probation`, `spare`), else empty.
        caps: power limits that are kept on it, or None while its power is not controlled.
    """

    spec: NodeSpec
    state: NodeState = NodeState.UNKNOWN
    cordons: tuple[Cordon, ...] = ()
    reason: str = ""
    lost_s: float | None = None
    slice_faults: tuple[SliceFault, ...] = ()
    trial: str = ""
    caps: NodeCaps | None = None

    @property
    def name(self) -> NodeName:
        """The node's name."""
        return self.spec.name

    @property
    def is_placeable(self) -> bool:
        """Whether new work may be placed on the node, if only of some kind (see `trial`)."""
        return self.state in PLACEABLE_NODE_STATES and not self.closing_cordons

    @property
    def closing_cordons(self) -> tuple[Cordon, ...]:
        """The cordons that keep all work off: not that of a spare which may work meanwhile."""
        if self.trial != SPARE:
            return self.cordons
        return tuple(cordon for cordon in self.cordons if cordon.owner != SPARE_OWNER)

    def ceiling_w(self, index: int) -> int:
        """Return the most that a device may draw: its ceiling, else its driver's limit."""
        cap = self.caps.of(index) if self.caps is not None else None
        if cap is not None:
            return cap.ceiling_w
        devices = self.spec.devices
        return devices[index].power_w if index < len(devices) else 0

    def slice_fault(self, index: int) -> SliceFault | None:
        """Return what keeps the slices of a device as they are, or None."""
        return next((fault for fault in self.slice_faults if fault.index == index), None)
