"""Closes nodes in Slurm for everybody, where the site allows it: the nodes that Tercio cordoned.

A drain of ours is known by its reason, `tercio: WHY (OWNER)`. Only such a one is ever lifted, and
a node that others drained keeps their reason. Each cordon drains once: who opens the node in Slurm
against it is not contradicted until the cordon changes, while Tercio's own work stays away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tercio.engines.slurm.commands import Commands, failure_of
from tercio.engines.slurm.facts import SlurmNode

_PREFIX: Final = "tercio: "
_REASON_CHARS: Final = 200


def reason_of(why: str, owner: str) -> str:
    """Return the reason of a drain of this server.

    >>> reason_of("row remapper failed", "cafe")
    'tercio: row remapper failed (cafe)'
    """
    text = " ".join(why.split()).replace('"', "'")[:_REASON_CHARS]
    return f"{_PREFIX}{text or 'cordoned'} ({owner})"


def is_ours(node: SlurmNode, owner: str) -> bool:
    """Whether the node is drained, and by this server."""
    is_marked = node.reason.startswith(_PREFIX) and node.reason.endswith(f"({owner})")
    return node.is_drained and is_marked and bool(owner)


class Drains:
    """Keeps Slurm's drains as the cordons are."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._done: dict[str, str] = {}

    async def keep(
        self, wanted: Mapping[str, str], nodes: Sequence[SlurmNode], *, owner: str
    ) -> None:
        """Drain what is wanted and open, lift what is ours and not wanted; idempotent.

        `wanted` are reasons by Slurm's node name. Raises EngineError; what was done stands.
        """
        by_reason: dict[str, list[str]] = {}
        lifted = []
        for node in nodes:
            reason = reason_of(wanted[node.name], owner) if node.name in wanted else ""
            if not reason and is_ours(node, owner):
                lifted.append(node.name)
            is_stale = is_ours(node, owner) and node.reason != reason
            if reason and (not node.is_drained or is_stale) and self._done.get(node.name) != reason:
                by_reason.setdefault(reason, []).append(node.name)
        for reason, names in by_reason.items():
            await self._update(names, "state=drain", f"reason={reason}")
            self._done |= dict.fromkeys(names, reason)
        if lifted:
            # Unlike `resume`, this leaves a node that is down as it is.
            await self._update(lifted, "state=undrain")
        self._done = {name: reason for name, reason in self._done.items() if name in wanted}

    async def _update(self, names: Sequence[str], *words: str) -> None:
        done = await self._commands.run(
            ["scontrol", "update", f"nodename={','.join(names)}", *words]
        )
        if done.code:
            raise failure_of("scontrol", done)
