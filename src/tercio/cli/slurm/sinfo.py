"""`sinfo`: pools as partitions, and the states of their nodes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from tercio.cli.output import write
from tercio.cli.session import Session
from tercio.cli.slurm.columns import instant
from tercio.cli.slurm.parsing import parse
from tercio.cli.slurm.words import node_state
from tercio.errors import UserError
from tercio.model.views import NodeView

SHORT: Final = "%9P %.5a %.10l %.6D %6t %N"
REASONS: Final = "%20E %9u %19H %N"
SUMMARY: Final = "%9P %.5a %.10l %.16F %N"
NODES: Final = "%15N %.6D %9P %6t"
_VALUED: Final = {
    "format": "o", "partition": "p", "states": "t", "nodes": "n", "sort": "S", "clusters": "M",
}  # fmt: skip
_FLAGS: Final = {
    "noheader": "h",
    "Node": "N",
    "long": "l",
    "all": "a",
    "summarize": "s",
    "list-reasons": "R",
}
_TITLES: Final = {
    "P": "PARTITION", "R": "PARTITION", "a": "AVAIL", "l": "TIMELIMIT", "D": "NODES",
    "t": "STATE", "T": "STATE", "N": "NODELIST", "n": "HOSTNAMES", "G": "GRES", "c": "CPUS",
    "m": "MEMORY", "E": "REASON", "f": "AVAIL_FEATURES", "C": "CPUS(A/I/O/T)",
    "A": "NODES(A/I)", "F": "NODES(A/I/O/T)", "u": "USER", "H": "TIMESTAMP",
}  # fmt: skip
_LONG_WORDS: Final = {
    "idle": "idle", "mix": "mixed", "alloc": "allocated", "drain": "drained", "drng": "draining",
    "down": "down", "unk": "unknown",
}  # fmt: skip


_OUT: Final = ("drain", "drng", "down", "unk")


class _Line(NamedTuple):
    pool: str
    state: str
    nodes: list[NodeView]


def run(session: Session, words: Sequence[str]) -> int:
    """List nodes by pool and state, or one by one with -N."""
    options, _ = parse(words, valued=_VALUED, flags=_FLAGS)
    standard = NODES if "Node" in options else SHORT
    standard = REASONS if "list-reasons" in options else standard
    standard = SUMMARY if "summarize" in options else standard
    form = options.get("format", standard)
    pieces = re.findall(r"([^%]+)|%(\.?)(\d*)([A-Za-z])", form)
    for _, _, _, letter in pieces:
        if letter and letter not in _TITLES:
            hint = f"known are {' '.join(f'%{known}' for known in _TITLES)}"
            raise UserError(f"%{letter} is no field here", hint=hint)
    if "noheader" not in options:
        write(_text(pieces, _TITLES))
    groups: dict[tuple[str, str, str], list[NodeView]] = {}
    for node in session.client.every_node():
        pool, state = node.pool or node.site, node_state(node)
        if not _is_wanted(options, node, pool, state):
            continue
        by_reason = "list-reasons" in options
        if by_reason and state not in _OUT:
            continue
        key = node.name if "Node" in options else node.reason if by_reason else ""
        groups.setdefault((pool, "" if "summarize" in options else state, key), []).append(node)
    for (pool, state, _), nodes in sorted(groups.items()):
        write(_text(pieces, _values(_Line(pool, state, nodes))))
    return 0


def _is_wanted(options: dict[str, str], node: NodeView, pool: str, state: str) -> bool:
    states = options.get("states", "").lower().split(",")
    return (
        ("partition" not in options or pool in options["partition"].split(","))
        and ("nodes" not in options or node.name in options["nodes"].split(","))
        and ("states" not in options or state in states or _LONG_WORDS[state] in states)
    )


def _values(row: _Line) -> dict[str, str]:
    first = row.nodes[0]
    names = ",".join(node.name for node in row.nodes)
    gres = [f"gpu:{t.lower()}:{n:g}" for t, n in first.total.items() if t != "CPU" and n]
    states = [node_state(node) for node in row.nodes]
    used, free = sum(s in ("mix", "alloc") for s in states), states.count("idle")
    out = len(states) - used - free
    cordon = next(iter(first.cordons), None)
    total = sum(node.cpus for node in row.nodes)
    idle = sum(node.cpus_free for node in row.nodes)
    return {
        "P": row.pool, "R": row.pool, "a": "up", "l": "infinite", "D": str(len(row.nodes)),
        "t": row.state, "T": _LONG_WORDS.get(row.state, ""), "N": names, "n": names,
        "G": ",".join(gres) or "(null)", "c": f"{first.cpus:g}",
        "m": str(first.memory_bytes // 1024**2), "E": first.reason or "none",
        "f": ",".join(first.labels) or "(null)",
        "A": f"{used}/{free}", "F": f"{used}/{free}/{out}/{len(states)}",
        "u": cordon.owner.removeprefix("user:") if cordon else "Unknown",
        "H": instant(cordon.since_s, "Unknown") if cordon else "Unknown",
        "C": f"{total - idle:g}/{idle:g}/0/{total:g}",
    }  # fmt: skip


def _text(pieces: Sequence[tuple[str, str, str, str]], values: dict[str, str]) -> str:
    found = ""
    for literal, dot, width, letter in pieces:
        text = literal or values[letter]
        wide = int(width or 0) if letter else 0
        text = text[:wide] if wide else text
        found += text.rjust(wide) if dot else text.ljust(wide)
    return found.rstrip()
