"""Durable entries for those who follow them: from memory when they are near, else the journal.

A follower pulls, so a slow one holds back nobody and costs no memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Final

from tercio.errors import UserError
from tercio.model.events import Entry
from tercio.store.journal import Journal

_RECENT: Final = 4096
_PAGE: Final = 500


class Resync(UserError):
    """The entries asked for are no longer kept: read the state anew, then follow from there."""

    def __init__(self, message: str) -> None:
        super().__init__(
            message,
            code="resync",
            hint="read the current state, then follow from its `seq`",
        )


class Feed:
    """The entries of one journal as they become durable."""

    def __init__(self, journal: Journal, *, newest: Callable[[], int]) -> None:
        self._journal = journal
        self._newest = newest
        self._recent: deque[Entry] = deque(maxlen=_RECENT)
        self._changed = asyncio.Event()
        self._is_closed = False

    def publish(self, entries: Sequence[Entry]) -> None:
        """Give durable entries to the followers."""
        self._recent.extend(entries)
        self._wake()

    def close(self) -> None:
        """End every follower once it has read what there is."""
        self._is_closed = True
        self._wake()

    async def follow(self, since: int) -> AsyncIterator[Entry]:
        """Yield entries after `since`, for ever, until the feed is closed.

        Raises:
            Resync: entries after `since` were dropped, or `since` is not of this journal.
        """
        pages = self.pages(since)
        try:
            async for page in pages:
                for entry in page:
                    yield entry
        finally:
            await pages.aclose()

    async def pages(self, since: int) -> AsyncGenerator[Sequence[Entry], None]:
        """Yield the same, as many at once as there are.

        Raises:
            Resync: as `follow`.
        """
        position = since
        if position > max(self._newest(), self._journal.last_seq):
            raise Resync(f"there is no entry {position} yet; the journal was restored since")
        while True:
            changed = self._changed
            page = await self._after(position)
            if page:
                position = page[-1].seq
                yield page
                continue
            if self._is_closed:
                return
            await changed.wait()

    async def _after(self, position: int) -> list[Entry]:
        if position >= self._journal.last_seq:
            return []
        if self._recent and self._recent[0].seq <= position + 1:
            start = position + 1 - self._recent[0].seq
            stop = min(start + _PAGE, len(self._recent))
            return [self._recent[index] for index in range(start, stop)]
        if position + 1 < self._journal.first_seq:
            first = self._journal.first_seq
            raise Resync(f"entries before {first} are no longer kept; {position + 1} was asked for")
        return await asyncio.to_thread(self._journal.read, position, _PAGE)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
