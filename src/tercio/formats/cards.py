"""The one table of accelerator names: canonical types, makers, card sizes and spellings.

The marketing name that a driver reports ("NVIDIA H100 80GB HBM3"), the name a user of another
tool types ("h100-80gb-sxm") and ours ("H100") all lead to one canonical type. Memory, form
factor and maker are not part of a type.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from tercio.errors import did_you_mean
from tercio.model.resources import CPU_DEVICE

GB: Final = 10**9


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """A type of accelerator.

    Attributes:
        type: canonical name.
        vendor: its maker in lower case.
        sizes_gb: marketing sizes of its memory, the usual one first; empty when it has none.
        names: other spellings, in capitals without spaces, dashes, maker and size.
    """

    type: str
    vendor: str
    sizes_gb: tuple[int, ...] = ()
    names: tuple[str, ...] = ()


def _card(type: str, vendor: str, *sizes_gb: int, names: str = "") -> Card:
    return Card(type=type, vendor=vendor, sizes_gb=sizes_gb, names=tuple(names.split()))


# Sizes and names follow the makers' data sheets and the names that their drivers report.
CARDS: Final = (
    _card("H100", "nvidia", 80, 94, 96, 64, names="H100NVL H100SXM H100PCIE H100MEGA"),
    _card("H200", "nvidia", 141, names="H200NVL H200SXM"),
    _card("H800", "nvidia", 80),
    _card("H20", "nvidia", 96, 141, names="H203E"),
    _card("GH200", "nvidia", 96, 144, names="GH200GRACEHOPPER"),
    _card("B100", "nvidia", 192),
    _card("B200", "nvidia", 180, 192, names="B200SXM"),
    _card("B300", "nvidia", 288, 270),
    _card("GB200", "nvidia", 186, 192),
    _card("GB300", "nvidia", 288, 279),
    _card("GB10", "nvidia", 128),
    _card("A100", "nvidia", 80, 40, names="A100SXM A100PCIE"),
    _card("A800", "nvidia", 80, 40),
    _card("A40", "nvidia", 48),
    _card("A30", "nvidia", 24),
    _card("A10", "nvidia", 24),
    _card("A10G", "nvidia", 24),
    _card("A16", "nvidia", 16),
    _card("A2", "nvidia", 16),
    _card("L40S", "nvidia", 48),
    _card("L40", "nvidia", 48),
    _card("L20", "nvidia", 48),
    _card("L4", "nvidia", 24),
    _card("L2", "nvidia", 24),
    _card("V100", "nvidia", 16, 32, names="V100S V100FHHL V100DGXS V100SXM V100PCIE"),
    _card("P100", "nvidia", 16, 12),
    _card("P40", "nvidia", 24),
    _card("P4", "nvidia", 8),
    _card("T4", "nvidia", 16),
    _card("T4G", "nvidia", 16),
    _card("M60", "nvidia", 8),
    _card("K80", "nvidia", 12),
    _card("TITANV", "nvidia", 12),
    _card("TITANRTX", "nvidia", 24),
    _card("RTXPRO6000", "nvidia", 96, names="RTXPRO6000BLACKWELL RTX6000BLACKWELL PRO6000"),
    _card("RTXPRO5000", "nvidia", 48, 72, names="RTXPRO5000BLACKWELL PRO5000"),
    _card("RTXPRO4500", "nvidia", 32, names="RTXPRO4500BLACKWELL PRO4500"),
    _card("RTXPRO4000", "nvidia", 24, names="RTXPRO4000BLACKWELL PRO4000"),
    _card("RTX6000Ada", "nvidia", 48, names="RTX6000ADA A6000ADA RTXA6000ADA"),
    _card("RTX5000Ada", "nvidia", 32, names="RTX5000ADA"),
    _card("RTX4500Ada", "nvidia", 24, names="RTX4500ADA"),
    _card("RTX4000Ada", "nvidia", 20, names="RTX4000ADA RTX4000SFFADA"),
    _card("RTX2000Ada", "nvidia", 16, names="RTX2000ADA"),
    _card("A6000", "nvidia", 48, names="RTXA6000"),
    _card("A5500", "nvidia", 24, names="RTXA5500"),
    _card("A5000", "nvidia", 24, names="RTXA5000"),
    _card("A4500", "nvidia", 20, names="RTXA4500"),
    _card("A4000", "nvidia", 16, names="RTXA4000"),
    _card("A2000", "nvidia", 12, 6, names="RTXA2000"),
    _card("RTX8000", "nvidia", 48),
    _card("RTX6000", "nvidia", 24),
    _card("RTX5000", "nvidia", 16),
    _card("RTX4000", "nvidia", 8),
    _card("RTX5090", "nvidia", 32),
    _card("RTX5090D", "nvidia", 32, 24),
    _card("RTX5080", "nvidia", 16),
    _card("RTX5070Ti", "nvidia", 16, names="RTX5070TI"),
    _card("RTX5070", "nvidia", 12),
    _card("RTX5060Ti", "nvidia", 16, 8, names="RTX5060TI"),
    _card("RTX5060", "nvidia", 8),
    _card("RTX4090", "nvidia", 24),
    _card("RTX4090D", "nvidia", 24, 48),
    _card("RTX4080", "nvidia", 16, names="RTX4080SUPER"),
    _card("RTX4070Ti", "nvidia", 12, 16, names="RTX4070TI RTX4070TISUPER"),
    _card("RTX4070", "nvidia", 12, names="RTX4070SUPER"),
    _card("RTX4060Ti", "nvidia", 8, 16, names="RTX4060TI"),
    _card("RTX4060", "nvidia", 8),
    _card("RTX3090Ti", "nvidia", 24, names="RTX3090TI"),
    _card("RTX3090", "nvidia", 24),
    _card("RTX3080Ti", "nvidia", 12, names="RTX3080TI"),
    _card("RTX3080", "nvidia", 10, 12),
    _card("RTX3070Ti", "nvidia", 8, names="RTX3070TI"),
    _card("RTX3070", "nvidia", 8),
    _card("RTX3060Ti", "nvidia", 8, names="RTX3060TI"),
    _card("RTX3060", "nvidia", 12, 8),
    _card("RTX2080Ti", "nvidia", 11, 22, names="RTX2080TI"),
    _card("RTX2080", "nvidia", 8, names="RTX2080SUPER"),
    _card("RTX2070", "nvidia", 8, names="RTX2070SUPER"),
    _card("RTX2060", "nvidia", 6, 12),
    _card("GTX1080Ti", "nvidia", 11, names="GTX1080TI 1080TI"),
    _card("GTX1080", "nvidia", 8),
    _card("MI355X", "amd", 288, names="MI355"),
    _card("MI350X", "amd", 288, names="MI350"),
    _card("MI325X", "amd", 256, names="MI325"),
    _card("MI308X", "amd", 192, names="MI308"),
    _card("MI300X", "amd", 192, names="MI300 MI300XHF"),
    _card("MI300A", "amd", 128),
    _card("MI250X", "amd", 128, names="MI250XMI250"),
    _card("MI250", "amd", 128),
    _card("MI210", "amd", 64),
    _card("MI100", "amd", 32),
    _card("MI60", "amd", 32),
    _card("MI50", "amd", 16, 32),
    _card("RX7900XTX", "amd", 24),
    _card("RX7900XT", "amd", 20),
    _card("W7900", "amd", 48),
    _card("Gaudi", "intel", 32, names="GAUDI HL205"),
    _card("Gaudi2", "intel", 96, names="GAUDI2 HL225"),
    _card("Gaudi3", "intel", 128, names="GAUDI3 HL325"),
    _card("Max1550", "intel", 128, names="MAX1550 DATACENTERMAX1550"),
    _card("Max1100", "intel", 48, names="MAX1100 DATACENTERMAX1100"),
    _card("Trainium", "aws", 32, names="TRAINIUM TRAINIUM1"),
    _card("Trainium2", "aws", 96, names="TRAINIUM2"),
    _card("Inferentia2", "aws", 32, names="INFERENTIA2"),
    _card(CPU_DEVICE, "cpu"),
)
VENDORS: Final = ("nvidia", "amd", "intel", "aws", "google", "tenstorrent", "cpu")

_BY_NAME: Final = {name: card for card in CARDS for name in (card.type.upper(), *card.names)} | {
    f"NVIDIA{card.type.upper()}": card for card in CARDS if card.vendor == "nvidia"
}
_BY_TYPE: Final = {card.type: card for card in CARDS}
_SIZE: Final = re.compile(r"(?<![A-Z0-9.])(\d{1,4})\s*GI?B(?![A-Z])")
_NOISE: Final = re.compile(
    r"\b(NVIDIA|TESLA|QUADRO|GEFORCE|GRID|AMD|INSTINCT|RADEON|PRO(?= W\d)|INTEL|HABANA|AWS|GPU"
    r"|SXM\d?|PCIE|PCI E|HBM\d\w?|HGX|DGX|DGXS|OAM|OAMS|NVL|MEGA|GENERATION|SERVER|WORKSTATION"
    r"|MAX Q|LAPTOP|EDITION|GRAPHICS|VF|SUPERCHIP|MIG .*)\b"
)


def find_card(name: str) -> Card | None:
    """Return the card with this name in any spelling, or None when the table lacks it."""
    return _BY_TYPE.get(name) or _BY_NAME.get(_squeeze(name))


def canonical_type(name: str) -> str:
    """Return the canonical type for a driver's marketing name or a user's spelling.

    A name that the table lacks becomes itself, without maker, size and form factor, in a
    form that a device request can hold; so new hardware works before the table knows it.

    >>> canonical_type("NVIDIA H100 80GB HBM3"), canonical_type("Tesla V100-SXM2-16GB")
    ('H100', 'V100')
    """
    card = find_card(name)
    return card.type if card else _squeeze(name) or "unknown"


def card_bytes(name: str, memory_bytes: int = 0) -> int:
    """Return the marketing size of a card's memory, 0 when unknown.

    `name` is the driver's name. The usable memory decides among the sizes a type is sold in,
    as drivers report up to a tenth less than the size on the box; without it, a size written
    in the name holds, else the usual one.
    """
    card = find_card(name)
    if memory_bytes > 0:
        # What makers sell as 80GB holds 80 * 1024**3 bytes, less what the driver keeps.
        usable = memory_bytes / 1024**3
        near = [size for size in (card.sizes_gb if card else ()) if 0.88 <= usable / size <= 1.03]
        if near:
            return min(near, key=lambda size: abs(size - usable)) * GB
        return round(usable) * GB
    written = _SIZE.search(name.upper())
    if written and (card is None or int(written.group(1)) in card.sizes_gb):
        return int(written.group(1)) * GB
    return card.sizes_gb[0] * GB if card and card.sizes_gb else 0


def vendor_of(type: str) -> str | None:
    """Return the maker of a canonical type, or None when the table lacks it."""
    card = _BY_TYPE.get(type)
    return card.vendor if card else None


def nearest_types(name: str, *, others: tuple[str, ...] = ()) -> str:
    """Return a hint naming the known types nearest to an unknown name."""
    known = [*(card.type for card in CARDS), *others]
    near = did_you_mean(_squeeze(name), known)
    return near or "write a type such as H100, A100, L4 or MI300X; `N` alone is any accelerator"


def _squeeze(name: str) -> str:
    """Return a name in capitals without maker, size, form factor and separators."""
    words = re.sub(r"[\s_/()-]+", " ", name.upper())
    words = _NOISE.sub(" ", _SIZE.sub(" ", words))
    return re.sub(r"[^A-Z0-9]+", "", words)
