"""Signals to Slurm jobs, gathered: one `scancel` for all that ask for the same at one time."""

from __future__ import annotations

import asyncio
from typing import Final

from tercio.engines.slurm.commands import Commands, failure_of

_GONE: Final = (
    "Invalid job id",
    "already completing or completed",
    "Job/step already",
    "Job is pending execution",
    "Not running",
    "Job not running",
)
_BATCH_MAX: Final = 500


class Canceller:
    """Sends signals through `scancel`."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._waiting: dict[tuple[str, ...], dict[int, None]] = {}
        self._sending: dict[tuple[str, ...], asyncio.Task[None]] = {}

    async def send(self, number: int, *words: str) -> None:
        """Run `scancel WORDS NUMBER`, together with others. Raises EngineError.

        A job that has gone, or does not run yet, is no error.
        """
        self._waiting.setdefault(words, {})[number] = None
        sending = self._sending.get(words)
        if sending is None:
            sending = self._sending[words] = asyncio.create_task(self._send(words))
        await asyncio.shield(sending)

    async def _send(self, words: tuple[str, ...]) -> None:
        await asyncio.sleep(0)
        del self._sending[words]
        numbers = list(self._waiting.pop(words))
        for start in range(0, len(numbers), _BATCH_MAX):
            part = [str(number) for number in numbers[start : start + _BATCH_MAX]]
            done = await self._commands.run(["scancel", *words, *part])
            if done.code and not any(text in done.err for text in _GONE):
                raise failure_of("scancel", done)
