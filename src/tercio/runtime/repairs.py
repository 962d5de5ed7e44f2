"""The site's repair command: one program that resets, reboots or power-cycles a node.

    COMMAND ACTION NODE

It gets the words as arguments and, beside them, `TERCIO_NODE`, `TERCIO_ACTION`, `TERCIO_SERIAL`
and `TERCIO_REASON` in its environment. Exit code 0 means that the node is mended and checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex

from tercio.model.effects import RepairNode

_TAIL = 200


async def run(command: str, order: RepairNode, *, until_s: float) -> tuple[bool, str]:
    """Run the command and return whether it worked and what it said last.

    Args:
        command: program with arguments of its own, as a shell would split it.
        order: what to mend.
        until_s: seconds it may take; it is killed then.
    """
    if not command:
        return False, "no repair command is configured (health.repair_command)"
    told = {
        "TERCIO_NODE": order.node,
        "TERCIO_ACTION": order.action,
        "TERCIO_SERIAL": order.serial,
        "TERCIO_REASON": order.reason,
    }
    try:
        process = await asyncio.create_subprocess_exec(
            *shlex.split(command), order.action, order.node,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **told},
            start_new_session=True,
        )  # fmt: skip
    except (OSError, ValueError) as failure:
        return False, f"the repair command could not start: {failure}"
    try:
        async with asyncio.timeout(max(until_s, 0.0)):
            output, _ = await process.communicate()
    except TimeoutError:
        return False, "the repair command did not end in time"
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    lines = output.decode(errors="replace").strip().splitlines()
    last = lines[-1][-_TAIL:] if lines else f"exit code {process.returncode}"
    return process.returncode == 0, last
