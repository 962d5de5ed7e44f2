"""Forms of the values of sbatch options: times, memory, nodes, GRES, dependencies, host lists."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from tercio.errors import UserError
from tercio.formats.document import Json
from tercio.model.ids import numbered_job

_MEMORY: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)b?", re.IGNORECASE | re.ASCII)
_MEMORY_BYTES: Final = {"k": 1024, "": 1024**2, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_COUNT: Final = {"": 1, "k": 1024, "m": 1024**2}
MAX_HOSTS: Final = 10_000


def time_s(text: str) -> float | None:
    """Read a limit: minutes, m:s, h:m:s, d-h, d-h:m or d-h:m:s. None for no limit.

    >>> time_s("90"), time_s("1-12"), time_s("0:30")
    (5400.0, 129600.0, 30.0)
    """
    word = text.strip().lower()
    if word in ("infinite", "unlimited", "-1", "0"):
        return None
    found = re.fullmatch(r"(?:(\d{1,6})-)?(\d{1,9})(?::(\d{1,9}))?(?::(\d{1,9}))?", word, re.ASCII)
    if found is None:
        raise _wrong(text, "a time limit", "write 90, 1:30:00 or 2-12:00:00")
    days, first, second, third = (None if x is None else int(x) for x in found.groups())
    if days is not None:
        return days * 86400.0 + (first or 0) * 3600 + (second or 0) * 60 + (third or 0)
    if third is not None:
        return (first or 0) * 3600.0 + (second or 0) * 60 + third
    if second is not None:
        return (first or 0) * 60.0 + second
    return (first or 0) * 60.0


def memory_bytes(text: str) -> int:
    """Read a memory size; a bare number is MiB.

    >>> memory_bytes("512"), memory_bytes("4G")
    (536870912, 4294967296)
    """
    found = _MEMORY.fullmatch(text.strip())
    if found is None:
        raise _wrong(text, "a memory size", "write 4000 for MB, or 64G")
    return int(float(found[1]) * _MEMORY_BYTES[found[2].lower()])


def hours(seconds: float | None) -> str:
    """Write a duration as people do, exactly: `36h`, `90m`, `45s`."""
    whole = max(round(seconds or 0), 1)
    for size, unit in ((3600, "h"), (60, "m")):
        if whole % size == 0:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def mebibytes(count: int) -> str:
    """Write a memory size in the largest whole unit: `256GiB`, `1500MiB`."""
    return f"{count // 1024}GiB" if count % 1024 == 0 else f"{count}MiB"


def number(text: str, *, least: int = 1) -> int:
    """Read a count, with k or m for 1024 and 1024 squared."""
    found = re.fullmatch(r"(\d{1,9})([km]?)", text.strip().lower(), re.ASCII)
    if found is None or int(found[1]) < least:
        raise _wrong(text, "a count", f"write a whole number from {least}")
    return int(found[1]) * _COUNT[found[2]]


def node_range(text: str) -> tuple[int, int]:
    """Read `4`, `2-4` or `2-4:2`: least and most nodes."""
    low, dash, high = text.strip().partition("-")
    high = high.partition(":")[0]
    least, most = number(low), number(high) if dash and high else number(low)
    if most < least:
        raise _wrong(text, "a range of nodes", f"write {most}-{least}")
    return least, most


class Gres(NamedTuple):
    """One generic resource: `gpu:h100:8` is its name, type and count."""

    name: str
    type: str
    amount: int


def gres(text: str) -> list[Gres]:
    """Read a list of generic resources: `gpu`, `gpu:8`, `gpu:h100:8`, several by commas."""
    found = []
    for piece in text.split(","):
        words = re.sub(r"\(.*?\)", "", piece.strip()).removeprefix("gres/").removeprefix("gres:")
        name, *rest = re.split(r"[:=]", words)
        kind, count = "", 1
        for word in rest:
            if re.fullmatch(r"\d{1,9}[km]?", word.lower()):
                count = number(word, least=0)
            else:
                kind = word
        if not name:
            raise _wrong(text, "a list of resources", "write gpu:8 or gpu:h100:8")
        found.append(Gres(name.lower(), kind, count))
    return found


def typed_count(text: str) -> Gres:
    """Read the value of --gpus and its kin: `8`, `h100:8`; of several only the first counts."""
    kind, colon, count = text.partition(",")[0].strip().rpartition(":")
    return Gres("gpu", kind if colon else "", number(count, least=0))


def host_list(text: str) -> list[str]:
    """Return the hosts of a list such as `n[01-03,7],gpu9`, zeros kept.

    >>> host_list("n[08-10],login")
    ['n08', 'n09', 'n10', 'login']
    """
    hosts: list[str] = []
    for piece in re.findall(r"[^,\[\]]*(?:\[[^\]]*\][^,\[\]]*)*", text):
        if piece.strip():
            hosts += _expand(piece.strip(), text)
        if len(hosts) > MAX_HOSTS:
            raise _wrong(text, "a short list of nodes", f"name at most {MAX_HOSTS}")
    return list(dict.fromkeys(hosts))


def _expand(piece: str, whole: str) -> list[str]:
    head, bracket, rest = piece.partition("[")
    if not bracket:
        return [piece]
    inside, _, tail = rest.partition("]")
    found = []
    for part in inside.split(","):
        low, dash, high = part.strip().partition("-")
        if not low.isdigit() or (dash and not high.isdigit()):
            raise _wrong(whole, "a list of nodes", "write n[1-4,7]")
        last = int(high) if dash else int(low)
        if last - int(low) > MAX_HOSTS:
            raise _wrong(whole, "a short list of nodes", f"name at most {MAX_HOSTS}")
        for at in range(int(low), last + 1):
            found += _expand(f"{head}{at:0{len(low)}d}{tail}", whole)
    return found


class Depends(NamedTuple):
    """A dependency as native rows, and the words that have no counterpart."""

    rows: list[Json]
    lost: list[str]


def exports(text: str) -> list[tuple[str, str | None]]:
    """Read the value of --export: names with their values, None where none is written.

    A value in single quotes may hold commas. `ALL`, `NONE` and `NIL` are words of sbatch.

    >>> exports("ALL,A=1,B='x,y',C")
    [('ALL', None), ('A', '1'), ('B', 'x,y'), ('C', None)]
    """
    found: list[tuple[str, str | None]] = []
    for piece in re.findall(r"(?:[^,']|'[^']*'|')+", text):
        name, equals, value = piece.strip().partition("=")
        is_named = equals and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)
        if is_named:
            found.append((name, re.sub(r"'([^']*)'", r"\1", value)))
        elif name or equals:
            word = name.upper() if name.upper() in ("ALL", "NONE", "NIL") else piece.strip()
            found.append((word, None))
    return found


_WHEN: Final = {
    "afterok": "ok", "afterany": "any", "afternotok": "failed", "afterburstbuffer": "ok",
    "aftercorr": "ok",
}  # fmt: skip


def dependencies(text: str) -> Depends:
    """Read `afterok:12:13,afterany:14`; ids are ours, or the number in SLURM_JOB_ID."""
    rows: list[Json] = []
    lost: list[str] = []
    if "?" in text:
        lost.append("? (any of several) became all of them")
    for piece in re.split(r"[,?]", text):
        kind, _, ids = piece.strip().partition(":")
        if kind == "singleton":
            lost.append("singleton: submit after the other one has ended")
            continue
        if kind.isdigit():
            kind, ids = "afterany", kind
        when = _WHEN.get(kind)
        if when is None:
            lost.append(f"{kind}: a job can wait for an end only, not for a start")
            continue
        if kind == "aftercorr":
            lost.append("aftercorr: the whole other array must end")
        for word in ids.split(":"):
            plain = re.sub(r"\+\d+$", "", word.strip())
            if re.fullmatch(r"\d{1,12}(_\d+|_\*)?", plain):
                plain = str(numbered_job(plain.removesuffix("_*")))
            if not re.fullmatch(r"job-[0-9a-z]+(\.\d+)?", plain):
                raise _wrong(text, "a dependency", "write afterok:job-00001")
            rows.append({"job": plain, "when": when})
    return Depends(rows, lost)


def signal(text: str) -> tuple[str, float]:
    """Read `[{R|B}:]SIG[@seconds]`: name and how long before the end."""
    word = text.rpartition(":")[2]
    name, _, seconds = word.partition("@")
    numbers = {"10": "USR1", "12": "USR2", "15": "TERM", "2": "INT", "1": "HUP", "3": "QUIT"}
    name = numbers.get(name.strip(), name.strip()).upper().removeprefix("SIG")
    if not name or (seconds and not seconds.strip().isdigit()):
        raise _wrong(text, "a signal", "write USR1@120")
    return f"SIG{name}", float(seconds or 60)


_RELATIVE: Final = {
    "second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0, "week": 604800.0,
}  # fmt: skip


def begins_in_s(text: str) -> float | None:
    """Read `now+1hour`, `now+30` (seconds): seconds from now; None for any other form."""
    found = re.fullmatch(r"now(?:\+(\d{1,9})\s*([a-z]*))?", text.strip().lower())
    if found is None:
        return None
    if found[1] is None:
        return 0.0
    unit = _RELATIVE.get(found[2].removesuffix("s") or "second")
    return None if unit is None else int(found[1]) * unit


def next_clock_s(text: str, now_s: float) -> float | None:
    """Return when a time of day comes next, in UTC: `16:00`, `9:30:00`, `noon`, `tomorrow`.

    >>> next_clock_s("16:00", 86400.0 + 61200.0) == 2 * 86400.0 + 57600.0
    True
    """
    word = text.strip().lower()
    midnight_s = now_s - now_s % 86400.0
    if word in ("today", "tomorrow"):
        return now_s if word == "today" else midnight_s + 86400.0
    word = {"midnight": "0:00", "noon": "12:00", "teatime": "16:00", "elevenses": "11:00"}.get(
        word, word
    )
    found = re.fullmatch(r"(\d{1,2}):(\d{2})(?::(\d{2}))?", word, re.ASCII)
    if found is None or int(found[1]) > 23 or int(found[2]) > 59:
        return None
    at_s = midnight_s + int(found[1]) * 3600 + int(found[2]) * 60 + int(found[3] or 0)
    return at_s if at_s >= now_s else at_s + 86400.0


def _wrong(text: str, what: str, fix: str) -> UserError:
    return UserError(f"'{text[:60]}' is not {what}", hint=fix)
