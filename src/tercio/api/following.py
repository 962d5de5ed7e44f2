"""Following the journal: frames in pieces, at the pace that the reader asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from tercio.api import sse
from tercio.api.context import ApiContext
from tercio.api.stories import tenant_of
from tercio.model.identity import Principal

BOARD_S: Final = 0.5
"""Least time between two boards; what is told in them is a sum over all jobs."""


async def follow(
    context: ApiContext, since: int, reader: Principal, *, has_views: bool, pause_s: float
) -> AsyncIterator[bytes]:
    """Yield the frames of the events after `since`, those of one moment in one piece."""
    frames = context.frames
    async with sse.closing(context.controller.subscribe_pages(since)) as pages:
        if has_views:
            yield frames.board(
                context.controller.driver, seq=context.journal.last_seq, now_s=context.now()
            )
        async for entries in pages:
            driver = context.controller.driver
            yield b"".join(
                frames.frame(driver, entry, reader, tenant_of(context, entry), has_views=has_views)
                for entry in entries
            )
            if has_views:
                wait_s = frames.board_s + BOARD_S - context.now()
                await asyncio.sleep(min(max(pause_s, wait_s), pause_s + BOARD_S))
                yield frames.board(
                    context.controller.driver, seq=context.journal.last_seq, now_s=context.now()
                )
            elif pause_s:
                await asyncio.sleep(pause_s)
