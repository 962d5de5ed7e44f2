"""Reads the log that `tasklog` writes: whole, its tail, since an instant, and following."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from tercio.engines.base import LogLine, LogQuery
from tercio.engines.local.tasklog import HEADER_BYTES, segment_name

_CHUNK_BYTES = 256 * 1024
_PAUSE_S = 0.1
_STREAMS = {"o": "out", "e": "err", "t": "tercio"}


async def read_log(
    directory: Path, query: LogQuery, *, is_ended: Callable[[], bool]
) -> AsyncIterator[LogLine]:
    """Yield the lines of a log directory, oldest first; follow until `is_ended` and all is read.

    Where the oldest lines are gone by rotation, a line of stream `tercio` says so.
    """
    numbers = _segments(directory)
    number = numbers[0] if numbers else 1
    offset = 0
    if query.tail is not None:
        number, offset = await asyncio.to_thread(_tail_start, directory, numbers, query.tail)
    elif number > 1 and (first := _first_instant(directory, number)) is not None:
        yield LogLine(at_s=first, stream="tercio", text="older output was dropped (log limit)")
    since_s = query.since_s
    rest = b""
    while True:
        was_ended = is_ended()
        chunk, is_there = _read(directory, number, offset)
        offset += len(chunk)
        *lines, rest = (rest + chunk).split(b"\n")
        for line in _parse(lines):
            if since_s is None or line.at_s >= since_s:
                yield line
        if chunk:
            await asyncio.sleep(0)
            continue
        later = [n for n in _segments(directory) if n > number]
        if later:
            # The next one exists, so this one is whole: what came since the read is in it, too.
            chunk, _ = _read(directory, number, offset)
            if chunk:
                continue
            if later[0] > number + 1 and is_there:
                at_s = _first_instant(directory, later[0]) or 0.0
                yield LogLine(at_s=at_s, stream="tercio", text="output was dropped (log limit)")
            number, offset, rest = later[0], 0, b""
            continue
        if was_ended or not query.is_following:
            return
        await asyncio.sleep(_PAUSE_S)


def _segments(directory: Path) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(directory) if name.isdigit())
    except FileNotFoundError:
        return []


def _read(directory: Path, number: int, offset: int) -> tuple[bytes, bool]:
    """Return the next bytes of a segment, and whether the segment is there."""
    try:
        fd = os.open(directory / segment_name(number), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b"", False
    try:
        return os.pread(fd, _CHUNK_BYTES, offset), True
    finally:
        os.close(fd)


def _tail_start(directory: Path, numbers: list[int], count: int) -> tuple[int, int]:
    """Return segment and offset of the last `count` lines; O(bytes of those lines)."""
    left = count
    for number in reversed(numbers):
        path = directory / segment_name(number)
        try:
            end = path.stat().st_size
        except FileNotFoundError:
            break
        # A last line without its newline is being written; it is not counted.
        for offset in _newlines_backwards(path, end):
            if left == 0:
                return number, offset + 1
            left -= 1
        if left == 0:
            return number, 0
    return (numbers[0] if numbers else 1), 0


def _newlines_backwards(path: Path, end: int) -> Iterator[int]:
    with open(path, "rb") as file:
        while end > 0:
            start = max(0, end - _CHUNK_BYTES)
            file.seek(start)
            block = file.read(end - start)
            at = block.rfind(b"\n")
            while at >= 0:
                yield start + at
                at = block.rfind(b"\n", 0, at)
            end = start


def _first_instant(directory: Path, number: int) -> float | None:
    chunk, _ = _read(directory, number, 0)
    first = next(_parse(chunk.split(b"\n")[:1]), None)
    return first.at_s if first else None


def _parse(lines: list[bytes]) -> Iterator[LogLine]:
    """Yield the lines that are whole; a torn one (the disk was full) is left out."""
    for line in lines:
        head = line[: HEADER_BYTES - 1]
        if len(line) < HEADER_BYTES or not head[:13].isdigit():
            continue
        stream = _STREAMS.get(chr(head[13]))
        if stream is None:
            continue
        yield LogLine(
            at_s=int(head[:13]) / 1000,
            stream=stream,
            text=line[HEADER_BYTES:].decode(errors="replace"),
            is_partial=head[14:15] == b"+",
        )
