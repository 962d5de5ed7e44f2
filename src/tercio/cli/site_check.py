"""`tercio site check`: the conformance suite on a live site, told line by line."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tercio.engines.base import Capabilities, Engine
from tercio.engines.bench import Bench, ShellPrograms
from tercio.engines.conformance import CHECKS, run_check
from tercio.engines.registry import SiteRoom
from tercio.engines.sites import Site, connect_site
from tercio.errors import TercioError, UserError


def run_site_check(
    site: Site,
    state_dir: Path,
    *,
    user: str,
    only: str,
    timeout_s: float,
    tell: Callable[[str], None],
) -> bool:
    """Run the suite with orders of a made-up server; return whether nothing failed.

    What it writes goes to a directory of its own, so that the server's tasks are not ours.
    Raises UserError where the site cannot be reached.
    """
    parent = state_dir if state_dir.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="site-check-", dir=parent) as folder:
        Path(folder).chmod(0o711)

        def no_snapshot(name: str) -> Path:
            raise UserError(f"no snapshot {name} in a check")

        room = SiteRoom(clock=time.time, state_dir=Path(folder), workdir_of=no_snapshot)
        run = _run(
            lambda: connect_site(site, room), user, only=only, timeout_s=timeout_s, tell=tell
        )
        try:
            return asyncio.run(run)
        except UserError as error:
            hint = error.hint or f"see docs/engines-{site.kind}.md"
            raise UserError(error.message, code=error.code, hint=hint) from error


async def _run(
    connect: Callable[[], Engine],
    user: str,
    *,
    only: str,
    timeout_s: float,
    tell: Callable[[str], None],
) -> bool:
    probe = Bench(connect, ShellPrograms(), user=user, deadline_s=timeout_s)
    try:
        await probe.open()
    except (TercioError, TimeoutError, AssertionError) as failure:
        raise UserError(f"the site does not answer: {failure}", code="unavailable") from failure
    tell(_nodes_line(probe))
    for line in _ability_lines(probe.engine.capabilities):
        tell(line)
    await probe.engine.close()
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for check in CHECKS:
        if only not in check.id:
            continue
        outcome = await run_check(
            check, connect, programs=ShellPrograms(), user=user, deadline_s=timeout_s
        )
        counts[outcome.status] += 1
        reason = f": {outcome.reason}" if outcome.reason else ""
        tell(f"{outcome.status:<8} {check.promise}{reason}")
    tell(", ".join(f"{count} {status}" for status, count in counts.items() if count))
    return counts["failed"] == 0


def _nodes_line(bench: Bench) -> str:
    totals: dict[str, int] = {}
    names = dict.fromkeys(node.name for node in bench.nodes)
    specs = {node.name: node for node in bench.nodes}
    for name in names:
        for device in specs[name].devices:
            totals[device.type] = totals.get(device.type, 0) + 1
    devices = ", ".join(f"{kind}:{count}" for kind, count in totals.items()) or "no devices"
    return f"{len(names)} nodes, {devices}"


def _ability_lines(found: Capabilities) -> list[str]:
    lines = []
    names = [name for name in Capabilities.__struct_fields__ if name != "notes"]
    for name in names:
        has = bool(getattr(found, name))
        note = found.notes.get(name, "")
        word = "can" if has else "cannot"
        lines.append(f"{word:<8} {name.replace('_', ' ')}" + (f": {note}" if note else ""))
    extra = [
        text for name, text in found.notes.items() if name not in Capabilities.__struct_fields__
    ]
    return [*lines, *(f"{'note':<8} {text}" for text in extra)]
