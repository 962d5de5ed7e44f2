"""Server-sent events (WHATWG HTML, section 9.2): frames, and a pulse that keeps them alive."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final, TypeVar

import msgspec

from tercio.api.problem import problem_of

T = TypeVar("T")

MEDIA_TYPE: Final = "text/event-stream"
PULSE_S: Final = 15.0
_PULSE: Final = b": pulse\n\n"
_OPENING: Final = b": open\n\n"


def frame(body: bytes, *, event_id: str | None = None, name: str | None = None) -> bytes:
    """Return one event. `body` is JSON or base64, so it has no line breaks."""
    parts = []
    if event_id is not None:
        parts.append(f"id: {event_id}\n".encode())
    if name is not None:
        parts.append(f"event: {name}\n".encode())
    parts.append(b"data: " + body + b"\n\n")
    return b"".join(parts)


async def alive(
    frames: AsyncIterator[bytes], *, stopping: asyncio.Event, pulse_s: float = PULSE_S
) -> AsyncIterator[bytes]:
    """Yield the frames, and a comment whenever none came for a while, until `stopping` is set.

    The first comment goes out at once, so that the reader knows that the stream is open. An
    error in the stream becomes an `error` event with problem JSON: the status line has gone
    out long before. `frames` is closed when the reader leaves.
    """
    stop: asyncio.Future[Any] = asyncio.ensure_future(stopping.wait())
    pending: asyncio.Future[Any] | None = None
    try:
        yield _OPENING
        while True:
            if pending is None:
                pending = asyncio.ensure_future(_next(frames))
            done, _ = await asyncio.wait(
                {pending, stop}, timeout=pulse_s, return_when=asyncio.FIRST_COMPLETED
            )
            if pending in done:
                ready, pending = pending, None
                content: bytes | None = ready.result()
                if content is None:
                    return
                yield content
            elif stop in done:
                return
            else:
                yield _PULSE
    except Exception as error:  # The reader must learn why the stream ends.
        yield frame(msgspec.json.encode(problem_of(error)), name="error")
    finally:
        waiting = [stop] if pending is None else [stop, pending]
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        if isinstance(frames, AsyncGenerator):
            await frames.aclose()


@contextlib.asynccontextmanager
async def closing(source: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """Close a generator when its reader leaves the block, also one typed as an iterator."""
    try:
        yield source
    finally:
        if isinstance(source, AsyncGenerator):
            await source.aclose()


async def _next(frames: AsyncIterator[bytes]) -> bytes | None:
    return await anext(frames, None)
