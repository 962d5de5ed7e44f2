"""Slurm's notations, read without I/O: host lists, GRES, TRES, `Key=Value` lines, sizes, times."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

_KEY: Final = re.compile(r"(?:^|\s)([A-Za-z][\w/:&.-]*)=")
_UNITS: Final = {"": 20, "K": 10, "M": 20, "G": 30, "T": 40, "P": 50}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)(?:i?B)?[cn]?", re.IGNORECASE)
_GRES: Final = re.compile(
    r"(?P<name>[A-Za-z_]\w*)(?::(?P<type>[A-Za-z][^:,()=]*))?(?:[:=](?P<count>\d+)(?P<unit>[KMG]?))?"
    r"(?:\((?P<where>[^)]*)\))?"
)
_TIME: Final = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
HOSTS_MAX: Final = 100_000


class Gres(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One generic resource: `gpu:h100:8(IDX:0-2)` is 8 of type h100, three of them in use."""

    name: str
    type: str = ""
    count: int = 1
    indexes: tuple[int, ...] = ()


def read_pairs(line: str) -> dict[str, str]:
    """Return the keys and values of one `scontrol -o` line; values may hold spaces.

    >>> read_pairs("NodeName=n1 OS=Linux 6.1 #1 Reason=bad fan [root@now]")["Reason"]
    'bad fan [root@now]'
    """
    found: dict[str, str] = {}
    marks = list(_KEY.finditer(line))
    for at, mark in enumerate(marks):
        end = marks[at + 1].start() if at + 1 < len(marks) else len(line)
        # A first mention wins: `Reason=` is prose in which anything may follow.
        found.setdefault(mark.group(1), line[mark.end() : end].strip())
    if "Reason" in found and "NodeName" in found:
        found["Reason"] = line[line.index(" Reason=") + len(" Reason=") :].strip()
    return found


def expand_hosts(text: str) -> tuple[str, ...]:
    """Return the names of a host list, in order.

    >>> expand_hosts("n[1-2,08-09],login,r[1-2]c[1-2]")
    ('n1', 'n2', 'n08', 'n09', 'login', 'r1c1', 'r1c2', 'r2c1', 'r2c2')
    """
    names: list[str] = []
    for part in _split(text):
        names += _expand(part)
        if len(names) > HOSTS_MAX:
            return tuple(names[:HOSTS_MAX])
    return tuple(names)


def _split(text: str, separator: str = ",") -> Iterator[str]:
    """Yield the parts between separators that stand outside brackets."""
    depth, start = 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "[(") - (letter in "])")
        if letter == separator and depth == 0:
            yield text[start:at].strip()
            start = at + 1
    rest = text[start:].strip()
    if rest:
        yield rest


def _expand(part: str) -> list[str]:
    head, bracket, tail = part.partition("[")
    if not bracket:
        return [part] if part and part not in ("(null)", "None", "N/A") else []
    inside, _, rest = tail.partition("]")
    middles: list[str] = []
    for span in inside.split(","):
        first, dash, last = span.partition("-")
        if not dash or not (first.isdigit() and last.isdigit()):
            middles.append(span)
            continue
        stop = min(int(last), int(first) + HOSTS_MAX)
        middles += [str(number).zfill(len(first)) for number in range(int(first), stop + 1)]
    ends = _expand(rest) or [""]
    return [head + middle + end for middle in middles for end in ends]


def read_numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of `0-2,5`; empty for `N/A`."""
    found: list[int] = []
    for span in text.split(","):
        first, _, last = span.partition("-")
        if first.isdigit():
            found += range(int(first), int(last if last.isdigit() else first) + 1)
    return tuple(found)


def read_gres(text: str) -> tuple[Gres, ...]:
    """Return generic resources from a node's `Gres`, `GresUsed` or a job's `TresPerNode`.

    >>> [(g.name, g.type, g.count, g.indexes) for g in read_gres("gpu:h100:3(IDX:0-2),gres/gpu:2")]
    [('gpu', 'h100', 3, (0, 1, 2)), ('gpu', '', 2, ())]
    """
    found: list[Gres] = []
    for part in _split(text):
        bare = part.removeprefix("gres/").removeprefix("gres:")
        match = _GRES.match(bare)
        if match is None or bare in ("N/A", "(null)", "none"):
            continue
        count = int(match["count"]) if match["count"] else 1
        scale = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}[match["unit"] or ""]
        where = match["where"] or ""
        indexes = read_numbers(where.removeprefix("IDX:")) if where.startswith("IDX:") else ()
        found.append(
            Gres(name=match["name"], type=match["type"] or "", count=count * scale, indexes=indexes)
        )
    return tuple(found)


def read_tres(text: str) -> dict[str, str]:
    """Return `cpu=64,mem=500G,gres/gpu=8` by name."""
    pairs = (part.partition("=") for part in _split(text))
    return {name: value for name, equals, value in pairs if equals}


def read_memory(text: str) -> int:
    """Return bytes of a size whose unit is MiB where none is written; 0 when unknown.

    >>> read_memory("500G") == 500 * 1024**3, read_memory("60000"), read_memory("N/A")
    (True, 62914560000, 0)
    """
    match = _SIZE.fullmatch(text.strip())
    return int(float(match[1]) * (1 << _UNITS[match[2].upper()])) if match else 0


def read_span(text: str) -> float | None:
    """Return seconds of `[days-]hours:minutes:seconds`, None for no limit or unknown.

    >>> read_span("1-02:00:00"), read_span("10:00"), read_span("UNLIMITED")
    (93600.0, 600.0, None)
    """
    match = _TIME.fullmatch(text.strip())
    if match is None:
        return None
    days, *rest = match.groups()
    fields = [int(each) for each in rest if each is not None]
    if days is not None:
        # With days, what follows are hours, minutes, seconds from the left.
        hours, minutes, seconds = (*fields, 0, 0)[:3]
        return float(int(days) * 86_400 + hours * 3600 + minutes * 60 + seconds)
    if len(fields) == 1:
        # A number alone is minutes.
        return float(fields[0] * 60)
    total = 0
    for each in fields:
        total = total * 60 + each
    return float(total)


def read_exit(text: str) -> tuple[int | None, int | None]:
    """Return (exit code, signal) of Slurm's `code:signal`; both None when unreadable.

    >>> read_exit("3:0"), read_exit("0:9"), read_exit("")
    ((3, None), (None, 9), (None, None))
    """
    code, _, signal = text.partition(":")
    if not code.isdigit():
        return None, None
    if signal.isdigit() and int(signal):
        return None, int(signal)
    number = int(code)
    # A shell tells of a signal by 128 + its number.
    return number, None
