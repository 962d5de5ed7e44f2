"""Keeps nodes closed at their engines while Tercio keeps them cordoned, where a site allows it.

The cordon is in the journal; what this does follows from it, and doing it twice changes nothing.
So a server that was killed in between does it again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from tercio.core.cluster import Cluster
from tercio.core.fleet import ENGINE
from tercio.engines.base import ClosingEngine
from tercio.errors import EngineError
from tercio.logs import facts
from tercio.model.health import SPARE_OWNER
from tercio.model.ids import NodeName
from tercio.runtime.clock import Clock

_LOOK_S: Final = 1.0
_RETRY_S: Final = 15.0
log = logging.getLogger(__name__)


def wanted_closed(cluster: Cluster, site: str) -> dict[NodeName, str]:
    """Return why nodes of a site are to be closed, by name.

    What the engine says itself closes nothing there, and a spare is free for others.
    """
    found: dict[NodeName, str] = {}
    for name, node in cluster.nodes.items():
        if node.spec.site != site or not node.cordons:
            continue
        why = [
            f"{cordon.reason or 'cordoned'}, {cordon.owner}"
            for cordon in node.cordons
            if cordon.owner not in (ENGINE, SPARE_OWNER)
        ]
        if why:
            found[name] = "; ".join(why)
    return found


async def keep_closed(
    engine: ClosingEngine,
    *,
    clock: Clock,
    cluster: Callable[[], Cluster],
    note: Callable[[str], None],
) -> None:
    """Follow the cordons until cancelled; `note` gets what is wrong, or an empty text."""
    done: dict[NodeName, str] | None = None
    while True:
        wanted = wanted_closed(cluster(), engine.site)
        pause_s = _LOOK_S
        if wanted != done:
            try:
                await engine.close_nodes(wanted)
                done = wanted
                note("")
            except EngineError as failure:
                log.warning("nodes_not_closed", extra=facts(site=engine.site, error=str(failure)))
                note(f"its nodes cannot be drained or resumed: {failure.message}")
                pause_s = _RETRY_S
        await clock.sleep_until(clock.now_s() + pause_s)
