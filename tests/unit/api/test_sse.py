"""Streams: frames, pulse, end, errors, and what closes when."""

import asyncio

import msgspec
import pytest

from tercio.api.sse import alive, frame
from tercio.client.transport import parse_stream
from tercio.errors import UserError


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 10))


def parsed(content: bytes):
    return list(parse_stream(iter(content.decode().split("\n"))))


def test_a_frame_is_read_back_by_the_client():
    (event,) = parsed(frame(b'{"a":1}', event_id="7", name="end"))
    assert (event.event_id, event.name, event.body) == ("7", "end", '{"a":1}')


def test_a_frame_without_a_name_is_a_message():
    (event,) = parsed(frame(b"x"))
    assert (event.event_id, event.name) == ("", "message")


async def numbers(count, closed):
    try:
        for number in range(count):
            yield frame(str(number).encode())
    finally:
        closed.append(True)


def test_a_stream_opens_with_a_comment_and_ends_with_its_source():
    async def check():
        closed = []
        found = [chunk async for chunk in alive(numbers(2, closed), stopping=asyncio.Event())]
        assert found == [b": open\n\n", b"data: 0\n\n", b"data: 1\n\n"]
        assert closed == [True]

    run(check())


def test_a_quiet_stream_pulses():
    async def check():
        release = asyncio.Event()

        async def quiet():
            await release.wait()
            yield frame(b"late")

        stream = alive(quiet(), stopping=asyncio.Event(), pulse_s=0.001)
        assert await anext(stream) == b": open\n\n"
        assert await anext(stream) == b": pulse\n\n"
        assert await anext(stream) == b": pulse\n\n"
        release.set()
        rest = [chunk async for chunk in stream]
        assert rest[-1] == b"data: late\n\n"

    run(check())


def test_a_server_that_stops_ends_the_stream_and_closes_its_source():
    async def check():
        stopping, closed = asyncio.Event(), []

        async def endless():
            try:
                await asyncio.Event().wait()
                yield b""
            finally:
                closed.append(True)

        stream = alive(endless(), stopping=stopping)
        await anext(stream)
        following = asyncio.ensure_future(anext(stream, None))
        await asyncio.sleep(0)
        stopping.set()
        assert await following is None
        assert closed == [True]

    run(check())


def test_a_reader_that_leaves_closes_the_source():
    async def check():
        closed = []
        stream = alive(numbers(5, closed), stopping=asyncio.Event())
        await anext(stream)
        await anext(stream)
        await stream.aclose()
        assert closed == [True]

    run(check())


@pytest.mark.parametrize(
    ("error", "code"),
    [(UserError("gone", code="resync"), "resync"), (RuntimeError("hush"), "internal")],
)
def test_an_error_in_the_stream_is_its_last_event(error, code):
    async def check():
        async def failing():
            yield frame(b"1")
            raise error

        chunks = [chunk async for chunk in alive(failing(), stopping=asyncio.Event())]
        (event,) = parsed(chunks[-1])
        assert event.name == "error"
        assert msgspec.json.decode(event.body)["code"] == code
        assert "hush" not in event.body

    run(check())
