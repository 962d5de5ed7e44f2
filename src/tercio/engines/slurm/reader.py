"""Reads the queue and the nodes, one request each: by `squeue` and `scontrol`, or slurmrestd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from tercio.engines.slurm import facts
from tercio.engines.slurm.commands import Commands, ask
from tercio.engines.slurm.rest import Rest


class Reader(Protocol):
    """Where jobs and nodes are read from."""

    async def jobs(self) -> list[facts.SlurmJob]:
        """Return every job that waits or runs. Raises EngineError."""
        ...

    async def nodes(self) -> list[facts.SlurmNode]:
        """Return every node. Raises EngineError."""
        ...


class CommandReader:
    """Reads by `squeue` and `scontrol`."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    async def jobs(self) -> list[facts.SlurmJob]:
        """See `Reader.jobs`."""
        text = await ask(self._commands, "squeue", "-h", "-a", "-o", facts.JOB_FORMAT)
        return facts.jobs_from_text(text)

    async def nodes(self) -> list[facts.SlurmNode]:
        """See `Reader.nodes`."""
        return facts.nodes_from_text(await ask(self._commands, *_NODES))


_NODES: Final = ("scontrol", "-a", "show", "node", "-o", "-d")


class RestReader:
    """Reads by slurmrestd."""

    def __init__(self, rest: Rest, clock: Callable[[], float]) -> None:
        self._rest = rest
        self._clock = clock

    async def jobs(self) -> list[facts.SlurmJob]:
        """See `Reader.jobs`."""
        return facts.jobs_from_json(await self._rest.get("jobs"), self._clock())

    async def nodes(self) -> list[facts.SlurmNode]:
        """See `Reader.nodes`."""
        return facts.nodes_from_json(await self._rest.get("nodes"))
