"""The grammar of device requests.

    alternatives := request (" | " request)*             in order of preference
    request      := none | N | N..M | SHARE              any accelerator
                  | [vendor:]TYPE[-80GB][:AMOUNT]        `TYPE:80GB:N` and `NxTYPE` mean the same
                  | 80GB[..][:AMOUNT]                    any card of that size, or at least it
                  | vendor:AMOUNT
                  | TYPE@20GiB                           memory of one card
                  | TYPE/1g.10gb[:N]                     MIG slices
    AMOUNT       := N | N..M | SHARE                     N..M is elastic; 0.5 is half a card

`gpu` may stand for "any type", as in `gpu:8` or `gpu:h100:8`.

>>> format_devices(parse_devices("2xh100 | A100-80GB:4"))
'H100:2 | A100-80GB:4'
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

import msgspec

from tercio.errors import UserError
from tercio.formats.cards import GB, VENDORS, find_card, nearest_types, vendor_of
from tercio.model.resources import NO_DEVICE, DeviceRequest
from tercio.model.units import format_milli, parse_memory_bytes

__all__ = [
    "MAX_COUNT",
    "PATTERN",
    "exact_memory",
    "format_devices",
    "parse_device",
    "parse_devices",
]

MAX_COUNT: Final = 100_000
MAX_ALTERNATIVES: Final = 16
PATTERN: Final = r"^\s*[A-Za-z0-9@][A-Za-z0-9 _.:@/-]*(\s*\|\s*[A-Za-z0-9@][A-Za-z0-9 _.:@/-]*)*$"
"""What JSON Schema can check of the grammar."""

_COUNT: Final = re.compile(r"^(\d{1,7})(?:\.\.(\d{1,7}))?$", re.ASCII)
_DECIMAL: Final = re.compile(r"^\d{0,7}\.\d{1,9}$", re.ASCII)
_SIZE: Final = re.compile(r"^(\d{1,4})\s*(?:gb|gib|g)(\.\.)?$", re.IGNORECASE | re.ASCII)
_SIZE_INSIDE: Final = re.compile(
    r"[-_ ](\d{1,4})\s*g(?:i?b)?(\.\.)?(?=$|[-_ ])", re.IGNORECASE | re.ASCII
)
_TIMES: Final = re.compile(r"^(\d{1,7}(?:\.\.\d{1,7})?)\s*x\s*(\S.*)$", re.IGNORECASE | re.ASCII)
_MIG: Final = re.compile(r"^\d{1,2}(?:c\.\d{1,2})?g\.\d{1,4}gb(?:\+[a-z.]+)?$", re.ASCII)
_FORM: Final = "write TYPE:N such as H100:8, N for any accelerator, or none"


class _Parts(msgspec.Struct):
    """What the parts of one request have said so far."""

    type: str | None = None
    vendor: str | None = None
    card_bytes: int | None = None
    card_at_least: bool = False
    amount: str | None = None
    share_memory: str | None = None
    mig_profile: str | None = None


class _Reader:
    """Reads one request; holds what error messages need."""

    def __init__(self, text: str, field: str | None, types: tuple[str, ...]) -> None:
        self._text = text
        self._field = field
        self._types = types

    def error(self, problem: str, fix: str) -> UserError:
        where = f"{self._field}: " if self._field else ""
        return UserError(f"{where}{self._text!r}: {problem}", hint=fix, field=self._field)

    def read(self) -> DeviceRequest:
        rest = self._text.strip()
        if rest.lower() == "none":
            return NO_DEVICE
        parts = _Parts()
        times = _TIMES.match(rest)
        if times:
            parts.amount, rest = times.group(1), times.group(2)
        if "@" in rest:
            rest, _, parts.share_memory = rest.partition("@")
        if "/" in rest:
            rest, _, profile = rest.partition("/")
            profile, colon, amount = profile.partition(":")
            parts.mig_profile = self._profile(profile)
            if colon:
                self._set_amount(parts, amount)
        if rest.strip() or not parts.share_memory:
            for position, piece in enumerate(rest.split(":")):
                self._piece(parts, piece.strip(), is_first=position == 0)
        return self._request(parts)

    def _piece(self, parts: _Parts, piece: str, *, is_first: bool) -> None:
        size = _SIZE.match(piece)
        if not piece:
            raise self.error("a part is empty", _FORM)
        if size:
            self._set_size(parts, size)
        elif _COUNT.match(piece) or _DECIMAL.match(piece):
            self._set_amount(parts, piece)
        elif piece.lower() in VENDORS and not (piece.lower() == "cpu" and is_first):
            if parts.vendor or parts.type:
                raise self.error(f"the maker {piece!r} comes first", "write nvidia:H100:8")
            parts.vendor = piece.lower()
        elif piece.lower() in ("gpu", "gpus", "any") and is_first:
            pass
        else:
            self._set_type(parts, piece)

    def _set_type(self, parts: _Parts, piece: str) -> None:
        if re.match(r"^[\d.+-]+$", piece):
            raise self.error(
                f"{piece!r} is not a count", f"write a whole count from 1 to {MAX_COUNT}"
            )
        if parts.type:
            fix = "write TYPE:N such as H100:8, and separate alternatives by |"
            raise self.error(f"{piece!r} after {parts.type} is no count and no card size", fix)
        size = _SIZE_INSIDE.search(piece)
        if size:
            piece = piece[: size.start()] + piece[size.end() :]
            self._set_size(parts, size)
        card = find_card(piece)
        by_lower = {name.lower(): name for name in self._types}
        if card:
            parts.type = card.type
        elif piece.lower() in by_lower:
            parts.type = by_lower[piece.lower()]
        else:
            raise self.error(
                f"{piece!r} is not a known device type", nearest_types(piece, others=self._types)
            )
        if parts.vendor and card and card.vendor != parts.vendor:
            raise self.error(
                f"{card.type} is made by {card.vendor}", f"write {card.vendor}:{card.type}"
            )

    def _set_size(self, parts: _Parts, size: re.Match[str]) -> None:
        if parts.card_bytes is not None:
            raise self.error("two card sizes", "write one, such as A100-80GB:8")
        if int(size.group(1)) == 0:
            raise self.error("a card has no 0GB", "write a card size such as 80GB")
        parts.card_bytes = int(size.group(1)) * GB
        parts.card_at_least = bool(size.group(2))

    def _set_amount(self, parts: _Parts, piece: str) -> None:
        if parts.amount is not None:
            raise self.error("two counts", _FORM)
        parts.amount = piece.strip()

    def _profile(self, profile: str) -> str:
        profile = profile.strip().lower()
        if not _MIG.match(profile):
            raise self.error(f"{profile!r} is not a MIG profile", "write one such as 1g.10gb")
        return profile

    def _request(self, parts: _Parts) -> DeviceRequest:
        count, count_max, milli = self._amount(parts.amount)
        memory_bytes = 0
        if parts.share_memory is not None:
            if parts.amount is not None or parts.mig_profile:
                raise self.error("memory of one card takes no count", "write TYPE@20GiB alone")
            memory_bytes, count = self._share(parts.share_memory), 0
        if milli and parts.mig_profile:
            raise self.error("a MIG slice cannot be shared", "write a whole count of slices")
        if count_max is not None and parts.mig_profile:
            raise self.error("a count of MIG slices cannot be a range", "write one count")
        vendor = parts.vendor
        if parts.type is not None and vendor == vendor_of(parts.type):
            vendor = None
        return DeviceRequest(
            type=parts.type,
            vendor=vendor,
            count=0 if milli else count,
            count_max=count_max,
            share_milli=milli,
            share_memory_bytes=memory_bytes,
            card_bytes=parts.card_bytes,
            card_at_least=parts.card_at_least,
            mig_profile=parts.mig_profile,
        )

    def _share(self, text: str) -> int:
        try:
            size = parse_memory_bytes(text.strip())
        except (UserError, ValueError):
            raise self.error(f"{text!r} is not a memory size", "write TYPE@20GiB") from None
        if not 1024**2 <= size <= 1024**4:
            raise self.error(f"{text!r} is not a part of one card", "write from 1MiB to 1TiB")
        return size

    def _amount(self, text: str | None) -> tuple[int, int | None, int]:
        """Return count, largest count or None, and thousandths of a shared card."""
        if text is None:
            return 1, None, 0
        whole = _COUNT.match(text)
        if whole:
            low, high = int(whole.group(1)), int(whole.group(2) or whole.group(1))
            if low == 0:
                raise self.error("a count of 0", "write none for no device")
            if high < low:
                raise self.error("the range runs backwards", f"write {high}..{low}")
            if high > MAX_COUNT:
                raise self.error("the count is too large", f"write at most {MAX_COUNT}")
            return low, high if high > low else None, 0
        if not _DECIMAL.match(text):
            raise self.error(f"{text!r} is not a count", "write 8, 1..8, or 0.5 for half a card")
        share = Fraction(text)
        if share >= 1 and share.denominator == 1 and share <= MAX_COUNT:
            return int(share), None, 0
        milli = share * 1000
        if not 0 < milli < 1000 or milli.denominator != 1:
            fix = "write a share of one card from 0.001 to 0.999, or a whole count"
            raise self.error(f"{text} devices cannot be held", fix)
        return 0, None, int(milli)


def parse_devices(
    text: str | int | float, *, field: str | None = None, types: tuple[str, ...] = ()
) -> tuple[DeviceRequest, ...]:
    """Read a device request: its alternatives in order.

    `types` are device types of the cluster beside those of the table.

    Raises:
        UserError: naming `field`, the text and the fix.
    """
    if isinstance(text, bool):
        raise _Reader(str(text).lower(), field, types).error("no device request", _FORM)
    pieces = str(text).split("|")
    if len(pieces) > MAX_ALTERNATIVES or len(str(text)) > 1024:
        fix = f"write at most {MAX_ALTERNATIVES} alternatives"
        raise _Reader(str(text)[:80], field, types).error("too many alternatives", fix)
    found = tuple(_Reader(piece.strip(), field, types).read() for piece in pieces)
    if NO_DEVICE in found[:-1]:
        fix = "write none alone, or as the last alternative"
        raise _Reader(str(text), field, types).error("nothing comes after none", fix)
    if len(dict.fromkeys(found)) < len(found):
        raise _Reader(str(text), field, types).error("an alternative twice", "remove one of them")
    return found


def parse_device(
    text: str | int | float, *, field: str | None = None, types: tuple[str, ...] = ()
) -> DeviceRequest:
    """Read a device request that has exactly one alternative."""
    found = parse_devices(text, field=field, types=types)
    if len(found) > 1:
        raise _Reader(str(text), field, types).error("alternatives make no sense here", "write one")
    return found[0]


def format_devices(requests: tuple[DeviceRequest, ...]) -> str:
    """Print a device request in the form that `parse_devices` reads back."""
    return " | ".join(_format(request) for request in requests)


def _format(request: DeviceRequest) -> str:
    if request.is_none:
        return "none"
    size = ""
    if request.card_bytes is not None:
        size = f"{request.card_bytes // GB}GB" + (".." if request.card_at_least else "")
    head = "-".join(part for part in (request.type, size) if part)
    if request.vendor:
        head = f"{request.vendor}:{head}" if head else request.vendor
    if request.share_memory_bytes:
        return f"{head or 'gpu'}@{exact_memory(request.share_memory_bytes)}"
    amount = str(request.count)
    if request.share_milli:
        amount = format_milli(request.share_milli)
    if request.count_max is not None:
        amount = f"{request.count}..{request.count_max}"
    if request.mig_profile:
        return f"{head or 'gpu'}/{request.mig_profile}:{amount}"
    return f"{head}:{amount}" if head else amount


def exact_memory(size_bytes: int) -> str:
    """Print a memory size so that `parse_memory_bytes` gives the same bytes again."""
    for base, mark in ((1024, "i"), (1000, "")):
        for power, letter in ((4, "T"), (3, "G"), (2, "M"), (1, "K")):
            if size_bytes and size_bytes % base**power == 0:
                return f"{size_bytes // base**power}{letter}{mark}B"
    return f"{size_bytes}B"
