"""Reads the log that the runner writes: whole, its tail, since an instant, and following."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final

from tercio.engines.base import LogLine, LogQuery, TaskRef
from tercio.engines.slurm.spool import LOGS, Spool

_CHUNK_BYTES: Final = 256 * 1024
_HEADER_BYTES: Final = 16
_STREAMS: Final = {"o": "out", "e": "err", "t": "tercio"}


async def read_log(
    spool: Spool,
    ref: TaskRef,
    query: LogQuery,
    *,
    is_ended: Callable[[], bool],
    pause_s: float,
) -> AsyncIterator[LogLine]:
    """Yield the lines of a task, oldest first; follow until `is_ended` and all is read."""
    sizes = await asyncio.to_thread(spool.segments, ref)
    number, offset = min(sizes, default=1), 0
    if query.tail is not None:
        number, offset = await asyncio.to_thread(_tail_start, spool, ref, sizes, query.tail)
    elif number > 1:
        yield LogLine(at_s=0.0, stream="tercio", text="older output was dropped (log limit)")
    rest = b""
    while True:
        was_ended = is_ended()
        chunk = await asyncio.to_thread(spool.read, ref, _name(number), offset, _CHUNK_BYTES)
        offset += len(chunk or b"")
        *lines, rest = (rest + (chunk or b"")).split(b"\n")
        for line in parse_lines(lines):
            if query.since_s is None or line.at_s >= query.since_s:
                yield line
        if chunk:
            continue
        later = [n for n in await asyncio.to_thread(spool.segments, ref) if n > number]
        if later:
            # The next one exists, so this one is whole: read what came since.
            chunk = await asyncio.to_thread(spool.read, ref, _name(number), offset, _CHUNK_BYTES)
            if not chunk:
                number, offset, rest = min(later), 0, b""
            continue
        if was_ended or not query.is_following:
            return
        await asyncio.sleep(pause_s)


def _name(number: int) -> str:
    return f"{LOGS}/{number:08d}"


def _tail_start(spool: Spool, ref: TaskRef, sizes: dict[int, int], count: int) -> tuple[int, int]:
    """Return segment and offset of the last `count` whole lines."""
    left = count
    for number in sorted(sizes, reverse=True):
        end = sizes[number]
        while end > 0:
            start = max(0, end - _CHUNK_BYTES)
            block = spool.read(ref, _name(number), start, end - start) or b""
            at = block.rfind(b"\n")
            while at >= 0:
                if left == 0:
                    return number, start + at + 1
                left -= 1
                at = block.rfind(b"\n", 0, at)
            end = start
        if left == 0:
            return number, 0
    return min(sizes, default=1), 0


def parse_lines(lines: list[bytes]) -> Iterator[LogLine]:
    """Yield the lines that are whole; a torn one (the disk was full) is left out."""
    for line in lines:
        head = line[: _HEADER_BYTES - 1]
        if len(line) < _HEADER_BYTES or not head[:13].isdigit():
            continue
        stream = _STREAMS.get(chr(head[13]))
        if stream is not None:
            yield LogLine(
                at_s=int(head[:13]) / 1000,
                stream=stream,
                text=line[_HEADER_BYTES:].decode(errors="replace"),
                is_partial=head[14:15] == b"+",
            )
