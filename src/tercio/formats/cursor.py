"""Typed reading of located values: every fault names source, line, field, value and fix."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final, TypeVar

import msgspec

from tercio.errors import UserError, did_you_mean
from tercio.formats.document import Node
from tercio.model import units

T = TypeVar("T")
D = TypeVar("D")
E = TypeVar("E", bound=StrEnum)

MAX_DURATION_S: Final = 100 * 365 * 86400.0
MAX_MEMORY_BYTES: Final = 1 << 55
SMALLEST_BARE_BYTES: Final = 1 << 20
MAX_CORES: Final = 1_000_000
NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
ENVIRONMENT: Final = r"^[A-Za-z_][A-Za-z0-9_]*$"

_NUMBER_TEXT_LIMIT: Final = 64


class Cursor(msgspec.Struct, frozen=True):
    """One value and where it stands.

    Attributes:
        source: file name, or what stands for it.
        path: dotted field path, such as `groups[0].per_task.devices`.
        node: the value.
    """

    source: str
    path: str
    node: Node

    def fault(self, problem: str, fix: str, *, code: str = "invalid") -> UserError:
        """Return the error for this value: `source:line: field: problem`."""
        line = f":{self.node.line}" if self.node.line else ""
        where = f"{self.path}: " if self.path else ""
        return UserError(
            f"{self.source}{line}: {where}{problem}", hint=fix, field=self.path or None, code=code
        )

    def shown(self) -> str:
        """Return the value for a message, quoted and short."""
        value = self.node.value
        if isinstance(value, dict):
            return "a mapping"
        if isinstance(value, list):
            return "a list"
        text = self.node.raw if len(self.node.raw) <= 60 else self.node.raw[:57] + "..."
        return f"'{text}'" if value is not None else "nothing"

    def wrong(self, kind: str, fix: str) -> UserError:
        """Return the error for a value of the wrong kind."""
        return self.fault(f"{self.shown()} is not {kind}", fix)

    def child(self, key: str, node: Node) -> Cursor:
        """Return the cursor of a value below a key."""
        path = f"{self.path}.{key}" if self.path else key
        return Cursor(self.source, path, node)

    # mappings and lists

    def mapping(self, fix: str) -> Iterator[tuple[str, Cursor]]:
        """Yield the keys and values of a mapping with free keys."""
        if not isinstance(self.node.value, dict):
            raise self.wrong("a mapping", fix)
        for key, node in self.node.value.items():
            yield key, self.child(key, node)

    def fields(self, known: Iterable[str], *, moved: Mapping[str, str] | None = None) -> Fields:
        """Return the fields of a mapping; an unknown key is refused.

        `moved` tells for words of other tools, or of other places, what to write instead.
        """
        known = list(known)
        if not isinstance(self.node.value, dict):
            raise self.wrong("a mapping", f"write a mapping with keys such as {known[0]}")
        for key, node in self.node.value.items():
            if key not in known:
                at = self.child(key, node)
                fix = (moved or {}).get(key) or did_you_mean(key, known)
                raise at.fault("unknown key", fix or f"known keys: {', '.join(known)}")
        return Fields(self, self.node.value, known)

    def rows(self, fix: str, *, most: int = 10_000) -> list[Cursor]:
        """Return the cursors of a list."""
        if not isinstance(self.node.value, list):
            raise self.wrong("a list", fix)
        if len(self.node.value) > most:
            raise self.fault(f"{len(self.node.value)} rows", f"write at most {most}")
        return [
            Cursor(self.source, f"{self.path}[{index}]", node)
            for index, node in enumerate(self.node.value)
        ]

    # scalars

    def text(self, fix: str = "write text", *, pattern: str = "", most: int = 4096) -> str:
        """Return a text; a number is refused unless it was meant as text (see `word`)."""
        if not isinstance(self.node.value, str):
            raise self.wrong("a text", fix)
        return self._checked(self.node.value, fix, pattern, most)

    def word(self, fix: str, *, pattern: str = "", most: int = 4096) -> str:
        """Return a scalar as it was written: `1.10`, `007` and `true` are words too."""
        if isinstance(self.node.value, dict | list) or self.node.value is None:
            raise self.wrong("a single value", fix)
        return self._checked(self.node.raw, fix, pattern, most)

    def _checked(self, text: str, fix: str, pattern: str, most: int) -> str:
        if len(text) > most:
            raise self.fault(f"{len(text)} characters", f"write at most {most}")
        if pattern and (text.endswith("\n") or not re.match(pattern, text, re.ASCII)):
            raise self.wrong("of the right form", fix)
        return text

    def boolean(self) -> bool:
        """Return true or false."""
        if not isinstance(self.node.value, bool):
            raise self.wrong("true or false", "write true or false")
        return self.node.value

    def integer(self, low: int, high: int, what: str = "a whole number") -> int:
        """Return a whole number inside bounds, both included."""
        value = self.node.value
        fix = f"write a whole number from {low} to {high}"
        if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(what, fix)
        if not low <= value <= high:
            raise self.fault(f"{self.shown()} is out of bounds", fix)
        return value

    def number(self, low: float, high: float, what: str = "a number") -> float:
        """Return a finite number inside bounds, both included."""
        value = self.node.value
        fix = f"write a number from {units.format_number(low)} to {units.format_number(high)}"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(what, fix)
        if not low <= value <= high:
            raise self.fault(f"{self.shown()} is out of bounds", fix)
        return float(value)

    def choice(self, kind: type[E]) -> E:
        """Return a member of an enumeration, by its value."""
        return kind(self.option([member.value for member in kind]))

    def option(self, options: Iterable[str], *, others: Mapping[str, str] | None = None) -> str:
        """Return one of the options; `others` gives hints for words that are none."""
        options = list(options)
        word = self.node.raw if not isinstance(self.node.value, dict | list) else ""
        if word in options and self.node.value is not None:
            return word
        listed = f"write one of: {', '.join(options)}"
        hint = (others or {}).get(word) or did_you_mean(word, options)
        raise self.wrong("a known word", f"{hint} ({listed})" if hint else listed)

    def parsed(self, read: Callable[[str], T], fix: str) -> T:
        """Return a scalar read by a function that takes its text and may refuse it."""
        text = self.word(fix)
        if len(text) > 1024:
            raise self.fault(f"{len(text)} characters", fix)
        try:
            return read(text)
        except UserError as error:
            raise self.fault(error.message, error.hint or fix) from None
        except (ValueError, ArithmeticError):
            raise self.wrong("of the right form", fix) from None

    def duration_s(self, *, least: float = 0.0, most: float = MAX_DURATION_S) -> float:
        """Return a duration in seconds."""
        fix = "write a duration such as 45s, 30m, 8h, 1h30m or 7d"
        seconds = self._unit(units.parse_duration_s, fix)
        if not least <= seconds <= most:
            low, high = units.format_duration(least), units.format_duration(most)
            raise self.fault(f"{self.shown()} is out of bounds", f"write from {low} to {high}")
        return seconds

    def memory_bytes(self, *, least: int = 1) -> int:
        """Return a memory size in bytes. A bare number is bytes, so a small one is a mistake."""
        if isinstance(self.node.value, float):
            raise self.wrong("a memory size", f"write a unit, such as {self.node.raw}GiB")
        size = self._unit(units.parse_memory_bytes, "write a memory size such as 64GiB or 512MiB")
        if not least <= size <= MAX_MEMORY_BYTES:
            raise self.fault(f"{self.shown()} is out of bounds", "write a size such as 64GiB")
        if 0 < size < SMALLEST_BARE_BYTES and self.node.raw.strip().isdigit():
            fix = f"write a unit, such as {size}GiB: a number without one is bytes"
            raise self.fault(f"{self.shown()} is too little memory", fix)
        return size

    def cores_milli(self) -> int:
        """Return a number of cores in thousandths, more than none."""
        milli = self._unit(units.parse_cores_milli, "write a number of cores such as 4 or 0.5")
        if not 1 <= milli <= MAX_CORES * 1000:
            raise self.fault(f"{self.shown()} is out of bounds", f"write from 0.001 to {MAX_CORES}")
        return milli

    def power_w(self) -> int:
        """Return a power in watts."""
        value = self.node.value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return int(self.number(0, 1e12, "a power"))
        return self._unit(units.parse_power_w, "write a power such as 700W or 400kW")

    def instant_s(self) -> float:
        """Return an instant in seconds since the epoch."""
        value = self.node.value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return self.number(0, 1e11, "an instant")
        fix = "write an instant with a zone, such as 2026-12-01T08:00:00Z"
        return self._unit(units.parse_instant_s, fix)

    def _unit(self, read: Callable[[str], T], fix: str) -> T:
        text = self.word(fix)
        if len(text) > _NUMBER_TEXT_LIMIT or isinstance(self.node.value, bool):
            raise self.wrong("of the right form", fix)
        return self.parsed(read, fix)


class Fields:
    """The fields of one mapping whose keys are known. A null field is not given."""

    __slots__ = ("_known", "_nodes", "at")

    def __init__(self, at: Cursor, nodes: Mapping[str, Node], known: list[str]) -> None:
        self.at = at
        self._nodes = nodes
        self._known = known

    def has(self, key: str) -> bool:
        """Whether the field is given."""
        return self.find(key) is not None

    def find(self, key: str) -> Cursor | None:
        """Return the cursor of a field, or None where it is not given."""
        assert key in self._known, key
        node = self._nodes.get(key)
        return None if node is None or node.value is None else self.at.child(key, node)

    def read(self, key: str, read: Callable[[Cursor], T], default: D) -> T | D:
        """Return a field read by a function, or the default where it is not given."""
        at = self.find(key)
        return default if at is None else read(at)

    def need(self, key: str, read: Callable[[Cursor], T], fix: str) -> T:
        """Return a field that must be given."""
        at = self.find(key)
        if at is None:
            node = self._nodes.get(key) or Node(value=None, line=self.at.node.line)
            raise self.at.child(key, node).fault("is missing", fix)
        return read(at)
