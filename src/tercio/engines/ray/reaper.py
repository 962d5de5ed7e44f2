"""Ends the tasks of a node when its raylet has gone: `python -m ... RAYLET_PID ROOT NODE`.

Ray gives the devices of a node that came back to others at once, so that nothing of ours may
still hold them. A task gets its stop signal and its grace, then the kill, and no server is
needed for that.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tercio.engines.base import Observation
from tercio.engines.registry import engine_class
from tercio.errors import EngineError
from tercio.model.effects import StopTask
from tercio.model.events import TaskExited
from tercio.model.ids import EffectId, NodeName, SiteName
from tercio.model.node import DeviceSpec, NodeSpec

GRACE_S: Final = 10.0
_DEADLINE_S: Final = 60.0


def machine_engine(
    root: Path,
    node: NodeSpec,
    *,
    vendor: str,
    log_cap_bytes: int,
    workdir_of: Callable[[str], Path] | None,
) -> Any:
    """Return the engine of one machine, for the tasks under `root`; it is not open yet."""
    import importlib
    import pwd

    settings = importlib.import_module("tercio.engines.local.settings").LocalSettings
    if vendor:
        # Where a node has accelerators, a task without any must see none.
        node = NodeSpec(
            name=node.name,
            site=node.site,
            devices=(DeviceSpec(type="unknown", index=0, vendor=vendor),),
        )
    return engine_class("local")(
        site=node.site,
        settings=settings(
            tasks_dir=str(root / "tasks"),
            run_as=pwd.getpwuid(os.getuid()).pw_name,
            log_cap_bytes=log_cap_bytes,
        ),
        clock=time.time,
        read_node=lambda _: node,
        workdir_of=workdir_of,
    )


async def end_tasks(root: Path, node: NodeName, *, grace_s: float = GRACE_S) -> int:
    """Stop every task that runs under `root` and wait until they are gone; return how many."""
    newest = root / "newest-run"
    epoch = int(newest.read_text()) if newest.exists() else 0
    spec = NodeSpec(name=node, site=SiteName("ray"))
    ended = asyncio.Semaphore(0)

    def deliver(observation: Observation) -> None:
        if isinstance(observation, TaskExited):
            ended.release()

    engine = machine_engine(root, spec, vendor="", log_cap_bytes=1, workdir_of=None)
    await engine.open(deliver)
    try:
        running = await engine.adopt([])
        for ref in running:
            order = StopTask(
                effect_id=EffectId(f"stop:{ref.key}"),
                epoch=epoch,
                deadline_s=time.time() + _DEADLINE_S,
                site=spec.site,
                node=node,
                job_id=ref.job_id,
                attempt=ref.attempt,
                task=ref.task,
                grace_s=grace_s,
            )
            await engine.stop(order)
        for _ in running:
            await asyncio.wait_for(ended.acquire(), grace_s + _DEADLINE_S)
    finally:
        await engine.close()
    return len(running)


def main(arguments: list[str]) -> None:
    """Wait for the end of the raylet, then end the tasks; one such process per raylet."""
    raylet, root, node = int(arguments[0]), Path(arguments[1]), NodeName(arguments[2])
    path = root / f"reaper-{raylet}.lock"
    lock = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    try:
        pidfd = os.pidfd_open(raylet)
    except ProcessLookupError:
        pidfd = -1
    if pidfd >= 0:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.poll()
    try:
        asyncio.run(end_tasks(root, node))
    except (EngineError, TimeoutError) as error:
        sys.exit(f"tasks under {root} may still run: {error}")
    finally:
        path.unlink()


if __name__ == "__main__":
    main(sys.argv[1:])
