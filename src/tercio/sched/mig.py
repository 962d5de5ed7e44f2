"""MIG placement tables: which memory slices of a card a profile may start at.

A card has 7 compute and 8 memory slices. The table holds what `nvidia-smi mig -lgipp` prints on
A100, H100-80 and H100 NVL; H200 and B200 are inferred from it. It is a fallback: what a device
reports itself wins. Profile names carry the memory, so one name means different slices on cards
of different size (`1g.10gb` is a double slice on a 40 GB card, a single one on an 80 GB card).
"""

from __future__ import annotations

from typing import Final, NamedTuple

COMPUTE_SLICES: Final = 7
MEMORY_SLICES: Final = 8


class MigProfile(NamedTuple):
    """One profile on one kind of card: compute slices, memory slices, legal first slices."""

    name: str
    compute: int
    size: int
    starts: tuple[int, ...]


_SHAPES: Final = (
    (1, 1, (0, 1, 2, 3, 4, 5, 6)),
    (1, 2, (0, 2, 4, 6)),
    (2, 2, (0, 2, 4)),
    (3, 4, (0, 4)),
    (4, 4, (0,)),
    (7, 8, (0,)),
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


def profiles_of(device_type: str, card_bytes: int) -> dict[str, MigProfile]:
    """Return the profiles of a card by name; empty for a card without MIG.

    A card of unknown size gets the table of the smallest card of its type.
    """
    size_gb = round(card_bytes / 10**9)
    sizes = [gb for name, gb in _NAMES if name == device_type]
    if not sizes:
        return {}
    nearest = min(sizes, key=lambda gb: (abs(gb - size_gb), gb)) if size_gb else min(sizes)
    names = _NAMES[device_type, nearest]
    return {name: MigProfile(name, *shape) for name, shape in zip(names, _SHAPES, strict=True)}


def slice_mask(profile: MigProfile, start: int) -> int:
    """Bits of the memory slices that an instance at `start` covers."""
    return ((1 << profile.size) - 1) << start


def first_start(profile: MigProfile, used: int) -> int | None:
    """Return where an instance goes on a card whose used slices are `used`, or None.

    Among legal starts the one that leaves the most legal starts for the larger profiles: small
    instances go to the end of the card, as the driver's own allocator does.
    """
    free = [s for s in profile.starts if not used & slice_mask(profile, s)]
    if not free:
        return None

    def openings(start: int) -> tuple[int, int]:
        taken = used | slice_mask(profile, start)
        left = sum(
            size * sum(1 for s in starts if not taken & (((1 << size) - 1) << s))
            for _, size, starts in _SHAPES
        )
        return (-left, start)

    return min(free, key=openings)


def instances_left(profile: MigProfile, used: int) -> int:
    """Return how many more instances of one profile a card takes."""
    count = 0
    while (start := first_start(profile, used)) is not None:
        used |= slice_mask(profile, start)
        count += 1
    return count
