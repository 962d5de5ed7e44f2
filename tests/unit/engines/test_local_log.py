"""The log of a task: bounded, and whole through every fault of the disk."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tercio.engines.base import LogLine, LogQuery
from tercio.engines.local.logread import read_log
from tercio.engines.local.tasklog import ERR, LINE_BYTES_MAX, OUT, SEGMENTS, LogWriter


def read(directory: Path, query: LogQuery | None = None) -> list[LogLine]:
    async def collect() -> list[LogLine]:
        lines = read_log(directory, query or LogQuery(), is_ended=lambda: True)
        return [line async for line in lines]

    return asyncio.run(collect())


def joined(lines: list[LogLine]) -> str:
    return "".join(line.text + ("" if line.is_partial else "\n") for line in lines)


@settings(max_examples=50, deadline=None)
@given(chunks=st.lists(st.binary(max_size=200)))
def test_every_byte_is_kept_however_it_is_cut(tmp_path_factory, chunks: list[bytes]) -> None:
    directory = tmp_path_factory.mktemp("log")
    log = LogWriter(str(directory), cap_bytes=1 << 24)
    for chunk in chunks:
        log.feed(OUT, chunk)
    log.close()
    text = b"".join(chunks)
    whole = text if text.endswith(b"\n") or not text else text + b"\n"
    assert joined(read(directory)) == whole.decode(errors="replace")


def test_a_long_line_is_cut_and_marked(tmp_path: Path) -> None:
    log = LogWriter(str(tmp_path), cap_bytes=1 << 24)
    log.feed(OUT, b"x" * (2 * LINE_BYTES_MAX + 5) + b"\n")
    log.close()
    assert [(len(line.text), line.is_partial) for line in read(tmp_path)] == [
        (LINE_BYTES_MAX, True),
        (LINE_BYTES_MAX, True),
        (5, False),
    ]


def test_rotation_keeps_the_newest_within_the_cap(tmp_path: Path) -> None:
    cap = SEGMENTS * 8 * LINE_BYTES_MAX
    log = LogWriter(str(tmp_path), cap_bytes=cap)
    for number in range(40_000):
        log.feed(OUT, b"%060d\n" % number)
    log.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= cap
    note, *lines = read(tmp_path)
    assert note.stream == "tercio"
    numbers = [int(line.text) for line in lines]
    assert numbers == list(range(numbers[0], 40_000))


def test_tail_reaches_over_files(tmp_path: Path) -> None:
    log = LogWriter(str(tmp_path), cap_bytes=SEGMENTS * 8 * LINE_BYTES_MAX)
    for number in range(5000):
        log.feed(OUT, b"%060d\n" % number)
    log.close()
    assert len(list(tmp_path.iterdir())) > 2
    for count in (0, 1, 10, 3000, 5000, 9000):
        tail = read(tmp_path, LogQuery(tail=count))
        assert [int(line.text) for line in tail] == list(range(max(0, 5000 - count), 5000))


def test_streams_do_not_mix(tmp_path: Path) -> None:
    log = LogWriter(str(tmp_path), cap_bytes=1 << 24)
    log.feed(OUT, b"be")
    log.feed(ERR, b"error\n")
    log.feed(OUT, b"gin\n")
    log.close()
    assert [(line.stream, line.text) for line in read(tmp_path)] == [
        ("err", "error"),
        ("out", "begin"),
    ]


def test_a_full_disk_loses_lines_and_says_how_many(tmp_path: Path) -> None:
    log = LogWriter(str(tmp_path), cap_bytes=1 << 24)
    log.feed(OUT, b"before\n")
    whole = os.dup(log._fd)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, log._fd)
    log.feed(OUT, b"lost\n")
    log.feed(OUT, b"lost as well\n")
    os.dup2(whole, log._fd)
    log.feed(OUT, b"after\n")
    log.close()
    os.close(full)
    os.close(whole)
    texts = [line.text for line in read(tmp_path)]
    assert texts[0] == "before"
    assert texts[1].endswith("bytes of output were lost: the disk was full")
    assert texts[2:] == ["after"]


def test_a_torn_line_is_left_out(tmp_path: Path) -> None:
    log = LogWriter(str(tmp_path), cap_bytes=1 << 24)
    log.feed(OUT, b"good\n")
    log.close()
    path = next(tmp_path.iterdir())
    path.write_bytes(b"17960\ngarbage\n" + path.read_bytes())
    assert [line.text for line in read(tmp_path)] == ["good"]


def test_since_leaves_out_older_lines(tmp_path: Path) -> None:
    (tmp_path / "00000001").write_bytes(b"0000000001000o. a\n0000000002000o. b\n")
    assert [line.text for line in read(tmp_path, LogQuery(since_s=1.5))] == ["b"]


def test_following_crosses_a_rotation(tmp_path: Path) -> None:
    is_over = False

    async def follow() -> list[str]:
        nonlocal is_over
        log = LogWriter(str(tmp_path), cap_bytes=1 << 20)
        lines = read_log(tmp_path, LogQuery(is_following=True), is_ended=lambda: is_over)
        texts = []
        for number in range(3000):
            log.feed(OUT, b"%0100d\n" % number)
            if number % 100 == 0:
                texts.append((await anext(lines)).text)
        log.close()
        is_over = True
        texts.extend([line.text async for line in lines])
        return texts

    assert [int(text) for text in asyncio.run(follow())] == list(range(3000))


def test_a_burst_of_empty_lines_stays_within_the_cap(tmp_path: Path) -> None:
    """Their headers make them seventeen times longer than what the task wrote."""
    cap = SEGMENTS * 8 * LINE_BYTES_MAX
    log = LogWriter(str(tmp_path), cap_bytes=cap)
    for _ in range(20):
        log.feed(OUT, b"\n" * 65_536)
    log.feed(OUT, b"last\n")
    log.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= cap
    assert read(tmp_path)[-1].text == "last"
