"""Answers of Ray that are slow, cut, garbled, doubled, late or old: nothing is lost or told twice.

`Line` is a proxy before the head's port, for what a network does to bytes; `relay` stands before
the bridge, for what a message could become. What is told must depend on neither.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from e2e.room import until
from tercio.engines.bench import Bench, ShellPrograms
from tercio.engines.ray.engine import RayEngine
from tercio.engines.ray.settings import RaySettings
from tercio.errors import EngineError
from tercio.model.events import NodeLost, NodeRemoved
from tercio.model.ids import SiteName

from .lab import Lab

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("ray"), pytest.mark.timeout(300)]

RARELY_S = 3600.0
"""Between regular looks: a test looks by itself."""
DEADLINE_S = 120.0


class Line:
    """A proxy before one TCP port, with faults that a test turns on.

    Attributes:
        port: of the proxy, on 127.0.0.2: Ray replaces 127.0.0.1 by an address of the machine.
        fault: `cut` ends connections, `silent` passes nothing on, `garbled` changes bytes.
    """

    def __init__(self, port: int) -> None:
        self.fault = ""
        self._upstream = ("127.0.0.1", port)
        self._server = socket.create_server(("127.0.0.2", 0))
        self.port = self._server.getsockname()[1]
        self._ends: list[socket.socket] = []
        self._heals = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def set_fault(self, fault: str) -> None:
        """Turn a fault on, or off with an empty name; what stands is cut by a change."""
        self.fault = fault
        if fault == "silent":
            self._heals.clear()
            return
        self._heals.set()
        ends, self._ends = self._ends, []
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.set_fault("cut")
        self._server.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve_one, args=(client,), daemon=True).start()

    def _serve_one(self, client: socket.socket) -> None:
        with client:
            if self.fault == "cut":
                return
            with socket.create_connection(self._upstream) as upstream:
                self._ends += [client, upstream]
                back = threading.Thread(target=self._pass, args=(upstream, client), daemon=True)
                back.start()
                self._pass(client, upstream)
                back.join()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while chunk := source.recv(65_536):
                if self.fault == "silent":
                    self._heals.wait()
                garbled = self.fault == "garbled" and source.getpeername() == self._upstream
                target.sendall(bytes(255 - byte for byte in chunk) if garbled else chunk)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def line(lab: Lab) -> Iterator[Line]:
    line = Line(lab.port)
    yield line
    line.close()


class Eye:
    """A bench on an engine whose looks at Ray, and whose clock, are the test's."""

    def __init__(self, lab: Lab, address: str) -> None:
        settings = RaySettings(
            address=address,
            namespace="faults",
            node_dir=str(lab.home / "nodes"),
            poll_s=RARELY_S,
            call_timeout_s=4.0,
            connect_timeout_s=10.0,
            lost_after_s=DEADLINE_S,
        )
        self.now_s = 1000.0
        self.bench = Bench(
            lambda: RayEngine(site=SiteName("here"), settings=settings, clock=lambda: self.now_s),
            ShellPrograms(),
            user="root",
            deadline_s=90.0,
        )

    async def play(self, scene: Callable[[], Awaitable[None]]) -> None:
        """Open, play, and stop what still runs; a failure leaves no process behind."""
        await self.bench.open()
        try:
            await scene()
        except BaseException:
            await self.bench.engine.close()
            raise
        await self.bench.close()

    async def look(self) -> None:
        assert isinstance(self.bench.engine, RayEngine)
        await self.bench.engine.poll()

    async def look_in_vain(self) -> None:
        with pytest.raises(EngineError) as caught:
            await self.look()
        assert caught.value.retryable

    async def look_until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(90.0):
            await self.look()
            while not holds():
                await self.look()

    def lost(self) -> list[object]:
        return [seen for seen in self.bench.seen if isinstance(seen, NodeLost | NodeRemoved)]


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(("silent", "cut"), id="late-or-cut"),
        pytest.param(("garbled", "silent", "garbled"), id="garbled", marks=pytest.mark.full),
    ],
)
def test_a_broken_line_to_the_head_loses_nothing_before_the_deadline(
    lab: Lab, line: Line, faults: tuple[str, ...]
) -> None:
    eye = Eye(lab, f"127.0.0.2:{line.port}")

    async def scene() -> None:
        script = 'echo "$TERCIO_ATTEMPT" >> starts; exec sleep 600'
        order, ref = await eye.bench.start({"command": script})
        for fault in faults:
            line.set_fault(fault)
            eye.now_s += DEADLINE_S / 4
            await eye.look_in_vain()
            assert (eye.bench.exits_of(ref), eye.lost()) == ([], [])
            # An order that does not get through is no answer, and is given again later.
            with pytest.raises(EngineError):
                await eye.bench.engine.launch(order, {})
        line.set_fault("")
        await eye.look_until(lambda: all(n.is_adopted for n in nodes_of(eye)))
        again = await eye.bench.engine.launch(order, {})
        assert again.effect_id == order.effect_id
        assert (eye.bench.exits_of(ref), eye.lost()) == ([], [])
        # Only a silence longer than the deadline is a loss, of every node, once.
        line.set_fault("cut")
        eye.now_s += DEADLINE_S + 1.0
        await eye.look_in_vain()
        assert len(eye.lost()) == 4
        line.set_fault("")
        await eye.look_until(lambda: all(n.is_adopted for n in nodes_of(eye)))
        assert eye.bench.exits_of(ref) == []

    asyncio.run(eye.play(scene))
    (ref,) = eye.bench.started
    assert (len(eye.bench.exits_of(ref)), len(eye.lost())) == (1, 4)


def nodes_of(eye: Eye) -> list[object]:
    return list(eye.bench.engine._watch.nodes.values())


def test_answers_that_are_doubled_late_old_or_torn_tell_nothing_twice(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def set_fault(name: str) -> None:
        fresh = tmp_path / "fault.new"
        fresh.write_text(name)
        fresh.replace(tmp_path / "fault")

    eye = Eye(lab, lab.address)

    async def scene() -> None:
        _, ref = await eye.bench.start(eye.bench.programs.runs())
        await eye.look()
        # What is said of the cluster is late; orders and their ends pass it by.
        set_fault("held")
        look = asyncio.create_task(eye.look())
        await asyncio.to_thread(until, (tmp_path / "came").exists, "the answer")
        _, late = await eye.bench.start(eye.bench.programs.exits(3))
        assert (await eye.bench.exit_of(late)).exit_code == 3
        set_fault("")
        await look
        # From before it was launched: what it holds is not given back, nor is it ended.
        set_fault("old")
        _, new = await eye.bench.start(eye.bench.programs.runs())
        for _ in range(2):
            await eye.look()
        groups = [str(name) for name in await asyncio.to_thread(lambda: lab.state()["groups"])]
        assert sorted(name.partition(":")[2] for name in groups) == sorted([ref.key, new.key])
        set_fault("torn")
        await eye.look_in_vain()
        set_fault("doubled")
        await eye.look_until(lambda: all(n.is_adopted for n in nodes_of(eye)))

    relay = tmp_path / "python"
    own = Path(__file__).with_name("relay.py")
    relay.write_text(f'#!/bin/sh\nexec {sys.executable} {own} {tmp_path} {sys.executable} "$@"\n')
    relay.chmod(0o755)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", str(relay))
        set_fault("doubled")
        asyncio.run(eye.play(scene))
    counts = [len(eye.bench.exits_of(ref)) for ref in eye.bench.started]
    # The second had ended when the bench stopped them all, and its end was told again for that.
    assert (counts, eye.lost()) == ([1, 2, 1], [])
