"""MIG: what a card can be cut into, and where the next slice goes.

A card has 7 compute and 8 memory slices (an A30 has 4 and 4). The packaged table holds what
`nvidia-smi mig -lgipp` prints on A30, A100, H100-80 and H100 NVL; H200 and B200 are inferred
from it, as NVIDIA gives them the same fractions. It is a fallback: what a device reports itself
wins. Profile names carry the memory, so one name means different slices on cards of different
size (`1g.10gb` is a double slice on a 40 GB card, a single one on an 80 GB card).
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import Final

from tercio.model.node import DeviceSpec, MigProfile, SliceFault
from tercio.model.resources import WHOLE_DEVICE_MILLI

COMPUTE_SLICES: Final = 7

Profiles = tuple[MigProfile, ...]

_SHAPES: Final = (
    (1, 1, (0, 1, 2, 3, 4, 5, 6)),
    (1, 2, (0, 2, 4, 6)),
    (2, 2, (0, 2, 4)),
    (3, 4, (0, 4)),
    (4, 4, (0,)),
    (7, 8, (0,)),
)
_A30: Final = (
    MigProfile(
        name="1g.6gb", compute=1, size=1, starts=(0, 1, 2, 3), compute_total=4, size_total=4
    ),
    MigProfile(name="2g.12gb", compute=2, size=2, starts=(0, 2), compute_total=4, size_total=4),
    MigProfile(name="4g.24gb", compute=4, size=4, starts=(0,), compute_total=4, size_total=4),
)

# Marketing size of the card in GB -> profile names in the order of _SHAPES.
_NAMES: Final[dict[tuple[str, int], tuple[str, ...]]] = {
    ("A100", 40): ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"),
    ("A100", 80): ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),
    ("H100", 80): ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),
    ("H100", 94): ("1g.12gb", "1g.24gb", "2g.24gb", "3g.47gb", "4g.47gb", "7g.94gb"),
    ("H200", 141): ("1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"),
    ("B200", 180): ("1g.23gb", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb"),
}


@lru_cache(maxsize=256)
def packaged_profiles(device_type: str, card_bytes: int) -> Profiles:
    """Return the profiles of a type of card; empty for one that cannot be cut.

    A card of unknown size gets the table of the smallest card of its type.

    >>> [profile.name for profile in packaged_profiles("H200", 141 * 10**9)][:2]
    ['1g.18gb', '1g.35gb']
    """
    if device_type == "A30":
        return _A30
    size_gb = round(card_bytes / 10**9)
    sizes = [gb for name, gb in _NAMES if name == device_type]
    if not sizes:
        return ()
    nearest = min(sizes, key=lambda gb: (abs(gb - size_gb), gb)) if size_gb else min(sizes)
    names = _NAMES[device_type, nearest]
    return tuple(
        MigProfile(name=name, compute=compute, size=size, starts=starts)
        for name, (compute, size, starts) in zip(names, _SHAPES, strict=True)
    )


def can_be_cut(device_type: str) -> bool:
    """Whether a type of card is known to have MIG.

    >>> can_be_cut("A100"), can_be_cut("L4")
    (True, False)
    """
    return bool(packaged_profiles(device_type, 0))


def profiles_of(device: DeviceSpec) -> Profiles:
    """Return every profile of a device: its own answer, else the packaged table."""
    if device.mig is None:
        return ()
    return device.mig.profiles or packaged_profiles(device.type, device.card_bytes)


def is_fixed(device: DeviceSpec, fault: SliceFault | None) -> bool:
    """Whether the mode and slices of a device are to be left as they are."""
    is_faulty = fault is not None and fault.until_s is not None
    return device.mig is not None and (bool(device.mig.fixed) or is_faulty)


def is_out(fault: SliceFault | None) -> bool:
    """Whether nothing may be placed on a device for now: what it does is not known."""
    return fault is not None and fault.until_s is not None and fault.is_unsure


def own_profiles(device: DeviceSpec, fault: SliceFault | None) -> Profiles | None:
    """Return what may be placed on a device now where the packaged table does not say it.

    None: the packaged table counts. Of a device that is left as it is, only the slices that
    are there may be used, so that they are the only starts.
    """
    mig = device.mig
    if mig is None or is_out(fault):
        return ()
    if not is_fixed(device, fault):
        return mig.profiles or None
    there: dict[str, tuple[int, ...]] = {}
    for part in mig.slices if mig.is_on else ():
        there[part.profile] = (*there.get(part.profile, ()), part.start)
    return tuple(
        MigProfile(
            name=profile.name,
            compute=profile.compute,
            size=profile.size,
            starts=there[profile.name],
            compute_total=profile.compute_total,
            size_total=profile.size_total,
        )
        for profile in profiles_of(device)
        if profile.name in there
    )


def can_be_whole(device: DeviceSpec, fault: SliceFault | None) -> bool:
    """Whether a device may be used uncut: it is not in MIG mode, or can be taken out of it."""
    if is_out(fault):
        return False
    return device.mig is None or not device.mig.is_on or not is_fixed(device, fault)


def slice_bits(profile: MigProfile, start: int) -> int:
    """Bits of the memory slices that a slice at `start` covers."""
    return ((1 << profile.size) - 1) << start


def slice_milli(profile: MigProfile) -> int:
    """Thousandths of the card that a slice counts as: its compute slices of all, rounded down.

    >>> [slice_milli(profile) for profile in packaged_profiles("H100", 0)]
    [142, 142, 285, 428, 571, 1000]
    """
    return profile.compute * WHOLE_DEVICE_MILLI // profile.compute_total


def usual_milli(name: str) -> int:
    """Thousandths of a card that a slice counts as by its name alone: its sevenths.

    >>> usual_milli("3g.40gb")
    428
    """
    return int(name.partition("g")[0]) * WHOLE_DEVICE_MILLI // COMPUTE_SLICES


def slice_memory_bytes(profile: MigProfile, card_bytes: int) -> int:
    """Memory of the card that a slice counts as: its memory slices of all, rounded down."""
    return card_bytes * profile.size // profile.size_total


@lru_cache(maxsize=65_536)
def capacity(profiles: Profiles, used: int) -> int:
    """How much a card may still become: every start that is left, weighed by its size."""
    return sum(
        profile.size * sum(1 for start in profile.starts if not used & slice_bits(profile, start))
        for profile in profiles
    )


def best_start(
    profiles: Profiles, profile: MigProfile, used: int, there: Collection[int] = ()
) -> tuple[int, int] | None:
    """Return what the best place for a slice costs, and its start; None when there is no room.

    The best is the one that leaves the card the most capacity for all profiles: 3g goes to 4
    before 0, so that a 4g still fits; among equals one of `there`, starts at which an idle
    slice of the profile is, then the last.
    """
    free = [start for start in profile.starts if not used & slice_bits(profile, start)]
    if not free:
        return None
    before = capacity(profiles, used)
    cost, _, last = min(
        (before - capacity(profiles, used | slice_bits(profile, start)), start not in there, -start)
        for start in free
    )
    return cost, -last


@lru_cache(maxsize=65_536)
def slices_left(profiles: Profiles, profile: MigProfile, used: int) -> int:
    """Return how many more slices of one profile a card takes."""
    count = 0
    while (found := best_start(profiles, profile, used)) is not None:
        used |= slice_bits(profile, found[1])
        count += 1
    return count
