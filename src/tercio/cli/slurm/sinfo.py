"""`sinfo`: pools as partitions, and the states of their nodes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from tercio.cli.output import write
from tercio.cli.session import Session
from tercio.cli.slurm.parsing import parse
from tercio.cli.slurm.words import node_state
from tercio.errors import UserError
from tercio.model.views import NodeView

SHORT: Final = "%9P %.5a %.10l %.6D %6t %N"
NODES: Final = "%15N %.6D %9P %6t"
_VALUED: Final = {
    "format": "o", "partition": "p", "states": "t", "nodes": "n", "sort": "S", "clusters": "M",
}  # fmt: skip
_FLAGS: Final = {"noheader": "h", "Node": "N", "long": "l", "all": "a", "summarize": "s"}
_TITLES: Final = {
    "P": "PARTITION", "R": "PARTITION", "a": "AVAIL", "l": "TIMELIMIT", "D": "NODES",
    "t": "STATE", "T": "STATE", "N": "NODELIST", "n": "HOSTNAMES", "G": "GRES", "c": "CPUS",
    "m": "MEMORY", "E": "REASON", "f": "AVAIL_FEATURES", "C": "CPUS(A/I/O/T)",
}  # fmt: skip
_LONG_WORDS: Final = {
    "idle": "idle", "mix": "mixed", "alloc": "allocated", "drain": "drained", "drng": "draining",
    "down": "down", "unk": "unknown",
}  # fmt: skip


class _Line(NamedTuple):
    pool: str
    state: str
    nodes: list[NodeView]


def run(session: Session, words: Sequence[str]) -> int:
    """List nodes by pool and state, or one by one with -N."""
    options, _ = parse(words, valued=_VALUED, flags=_FLAGS)
    form = options.get("format", NODES if "Node" in options else SHORT)
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
        groups.setdefault((pool, state, node.name if "Node" in options else ""), []).append(node)
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
    total = sum(node.cpus for node in row.nodes)
    idle = sum(node.cpus_free for node in row.nodes)
    return {
        "P": row.pool, "R": row.pool, "a": "up", "l": "infinite", "D": str(len(row.nodes)),
        "t": row.state, "T": _LONG_WORDS[row.state], "N": names, "n": names,
        "G": ",".join(gres) or "(null)", "c": f"{first.cpus:g}",
        "m": str(first.memory_bytes // 1024**2), "E": first.reason or "none",
        "f": ",".join(first.labels) or "(null)",
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
