"""The runs of the twin that were asked for: one at a time, the last ones kept in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

import msgspec

from tercio.api.children import Children
from tercio.api.twin_bodies import TwinRunView
from tercio.errors import UserError

KEPT: Final = 8
DEADLINE_S: Final = 300.0


class TwinRuns:
    """Starts runs and remembers what came of them."""

    def __init__(self) -> None:
        self._children = Children()
        self._runs: dict[str, TwinRunView] = {}
        self._task: asyncio.Task[None] | None = None
        self._count = 0

    def rows(self) -> list[TwinRunView]:
        """Return the runs, newest first."""
        return list(reversed(self._runs.values()))

    def run(self, name: str) -> TwinRunView:
        """Return a run.

        Raises:
            UserError: `not_found`.
        """
        found = self._runs.get(name)
        if found is None:
            raise UserError(
                f"there is no run {name!r}", code="not_found", hint=f"the last {KEPT} are kept"
            )
        return found

    def start(self, question: msgspec.Struct, make: Callable[[str], TwinRunView]) -> TwinRunView:
        """Begin a run; `make` returns its view by its name.

        Raises:
            UserError: `conflict` while another one runs.
        """
        if self._task is not None and not self._task.done():
            raise UserError(
                "a run of the twin is under way", code="conflict", hint="ask again when it is done"
            )
        self._count += 1
        view = make(f"run-{self._count}")
        self._runs[view.run] = view
        for old in list(self._runs)[:-KEPT]:
            del self._runs[old]
        self._task = asyncio.get_running_loop().create_task(self._perform(view.run, question))
        return view

    async def _perform(self, name: str, question: msgspec.Struct) -> None:
        try:
            content = await self._children.ask(
                "twin_run",
                question,
                deadline_s=DEADLINE_S,
                tell=lambda line: self._tell(name, line),
            )
            self._change(name, state="done", answer=msgspec.Raw(content))
        except UserError as error:
            self._change(name, state="failed", error=error.message, hint=error.hint)
        except RuntimeError as error:
            self._change(name, state="failed", error=str(error))

    def _tell(self, name: str, line: str) -> None:
        words = line.split()
        if len(words) == 2 and all(word.isdigit() for word in words):
            self._change(name, done=int(words[0]), whole=int(words[1]))

    def _change(self, name: str, **fields: object) -> None:
        self._runs[name] = msgspec.structs.replace(self._runs[name], **fields)

    async def close(self) -> None:
        """End the one that runs."""
        await self._children.close()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
