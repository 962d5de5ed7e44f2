"""The agent of one node: an actor that runs the node's tasks with the engine of one machine.

Its class travels to the node by value, and the code it needs by the cluster's key-value store,
so that a node needs Python and Ray alone and always runs the server's version. Only the
standard library is imported above; the rest once the code is there. Every method takes and
gives msgpack.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import deque
from pathlib import Path
from typing import Any

EVENTS_MAX = 10_000
LINES_MAX = 1000
STREAMS_IDLE_S = 600.0
UNHEARD_S = 900.0
LOOK_S = 60.0
_REAPER = "tercio.engines.ray.reaper"


class NodeAgent:
    """Serves one node for as long as its raylet lives; a restarted one finds its tasks again."""

    def __init__(self, code_key: bytes, settings: dict[str, Any]) -> None:
        root = settings["node_dir"] or os.path.join(
            tempfile.gettempdir(), f"tercio-ray-{os.getuid()}"
        )
        self._root = Path(root) / settings["namespace"] / settings["name"]
        self._root.mkdir(parents=True, exist_ok=True)
        self._settings = settings
        self._raylet = os.getppid()
        _unpack_code(code_key, self._root.parent)
        self._engine: Any = None
        self._opening = asyncio.Lock()
        self._events: deque[Any] = deque()
        self._first = 0
        self._news = asyncio.Event()
        self._listener = ""
        self._streams: dict[int, Any] = {}
        self._sessions: dict[int, Any] = {}
        self._next_id = 0
        self._heard = time.monotonic()
        self._leaving: Any = None
        self._start_reaper()

    async def facts(self) -> bytes:
        """Return `AgentFacts`; the first call opens the engine."""
        import msgspec

        from tercio.engines.ray.messages import AgentFacts

        engine = await self._opened()
        fields = msgspec.structs.asdict(engine.capabilities)
        notes = fields.pop("notes")
        abilities = tuple(name for name, holds in fields.items() if holds)
        facts = AgentFacts(ids=self._visible(), abilities=abilities, notes=notes)
        return msgspec.msgpack.encode(facts)

    async def adopt(self, listener: str, payload: bytes) -> bytes:
        """Start to tell `listener` what happens, beginning with the tasks it knows."""
        import msgspec

        from tercio.engines.base import TaskRef

        engine = await self._opened()
        self._listener = listener
        self._first = 0
        self._events.clear()
        known = msgspec.msgpack.decode(payload, type=tuple[TaskRef, ...])
        return msgspec.msgpack.encode(await engine.adopt(known))

    async def listen(self, listener: str, after: int, wait_s: float) -> tuple[int, bytes] | None:
        """Return observations after a number and the new number; None for a replaced listener."""
        import msgspec

        self._heard = time.monotonic()
        while self._events and self._first < after:
            self._events.popleft()
            self._first += 1
        if self._listener == listener and not self._events:
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), wait_s)
        if self._listener != listener:
            return None
        told = list(self._events)
        return self._first + len(told), msgspec.msgpack.encode(told)

    async def call(self, method: str, payload: bytes) -> tuple[bytes, str, bool]:
        """Call one of the methods below by its name.

        Returns the encoded answer; or why there is none, and whether it may be tried again.
        """
        import msgspec

        from tercio.errors import EngineError, TercioError

        await self._opened()
        try:
            answer = await getattr(self, f"_do_{method}")(payload)
        except EngineError as error:
            return b"", error.message, error.retryable
        except (TercioError, OSError) as error:
            return b"", str(error) or type(error).__name__, True
        return msgspec.msgpack.encode(answer), "", False

    async def _do_launch(self, payload: bytes) -> Any:
        import msgspec

        from tercio.model.effects import LaunchTask

        order, secrets = msgspec.msgpack.decode(payload, type=tuple[LaunchTask, dict[str, str]])
        return await self._engine.launch(order, secrets)

    async def _do_stop(self, payload: bytes) -> None:
        import msgspec

        from tercio.model.effects import StopTask

        order = msgspec.msgpack.decode(payload, type=StopTask)
        await self._engine.stop(order)

    async def _do_signal(self, payload: bytes) -> None:
        import msgspec

        from tercio.model.effects import SignalTask

        await self._engine.signal(msgspec.msgpack.decode(payload, type=SignalTask))

    async def _do_forget(self, payload: bytes) -> None:
        import msgspec

        from tercio.engines.base import TaskRef

        await self._engine.forget(msgspec.msgpack.decode(payload, type=list[TaskRef]))

    async def _do_marks(self, payload: bytes) -> Any:
        import msgspec

        from tercio.engines.base import TaskRef

        wanted = msgspec.msgpack.decode(payload, type=list[tuple[TaskRef, int]])
        told = await self._engine.marks(wanted)
        # What a task writes need not be text.
        return [(text.encode(errors="surrogateescape"), offset) for text, offset in told]

    async def _do_has_snapshot(self, payload: bytes) -> bool:
        path = self._snapshot(payload.decode())
        if path.is_file():
            os.utime(path)
            return True
        return False

    async def _do_put_snapshot(self, payload: bytes) -> None:
        import msgspec

        name, chunk, offset, is_last = msgspec.msgpack.decode(
            payload, type=tuple[str, bytes, int, bool]
        )
        path = self._snapshot(name)
        path.parent.mkdir(exist_ok=True)
        fresh = path.with_suffix(".new")
        await asyncio.to_thread(_write_at, fresh, chunk, offset)
        if is_last:
            fresh.rename(path)

    async def _do_log_open(self, payload: bytes) -> int:
        import msgspec

        from tercio.engines.base import LogQuery, TaskRef

        task, query = msgspec.msgpack.decode(payload, type=tuple[TaskRef, LogQuery])
        self._next_id += 1
        self._streams[self._next_id] = _Stream(self._engine.logs(task, query))
        now = time.monotonic()
        for number, stream in list(self._streams.items()):
            if now - stream.used > STREAMS_IDLE_S:
                self._streams.pop(number).close()
        return self._next_id

    async def _do_log_next(self, payload: bytes) -> Any:
        number = _number(payload)
        stream = self._streams.get(number)
        if stream is None:
            return [], True
        lines, is_over = await stream.next()
        if is_over:
            self._streams.pop(number, None)
        return lines, is_over

    async def _do_log_close(self, payload: bytes) -> None:
        stream = self._streams.pop(_number(payload), None)
        if stream is not None:
            stream.close()

    async def _do_exec_open(self, payload: bytes) -> int:
        import msgspec

        from tercio.engines.base import ExecRequest, TaskRef

        task, request = msgspec.msgpack.decode(payload, type=tuple[TaskRef, ExecRequest])
        session = await self._engine.execute(task, request)
        self._next_id += 1
        self._sessions[self._next_id] = session
        return self._next_id

    async def _do_exec(self, payload: bytes) -> Any:
        import msgspec

        number, what, chunk, rows, columns = msgspec.msgpack.decode(
            payload, type=tuple[int, str, bytes, int, int]
        )
        session = self._sessions.get(number)
        match what:
            case "read":
                return await session.read() if session else b""
            case "write" if session:
                await session.write(chunk)
            case "resize" if session:
                await session.resize(rows=rows, columns=columns)
            case "wait":
                return await session.wait() if session else 1
            case "close" if session:
                del self._sessions[number]
                await session.close()
        return None

    async def _opened(self) -> Any:
        async with self._opening:
            if self._engine is None:
                engine = self._make_engine()
                await engine.open(self._tell)
                # After a restart of this actor its tasks are watched again at once.
                await engine.adopt([])
                self._engine = engine
                self._leaving = asyncio.ensure_future(self._leave_unheard())
        return self._engine

    async def _leave_unheard(self) -> None:
        """End this actor when no server listens for long and no task runs here."""
        import ray

        while True:
            await asyncio.sleep(LOOK_S)
            if time.monotonic() - self._heard > UNHEARD_S and not await self._engine.adopt([]):
                break
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

    def _make_engine(self) -> Any:
        import pwd

        from tercio.engines.registry import engine_class
        from tercio.model.ids import NodeName, SiteName
        from tercio.model.node import DeviceSpec, NodeSpec

        settings = importlib.import_module("tercio.engines.local.settings").LocalSettings
        vendor = self._settings["vendor"]
        # Where a node has accelerators, a task without any must see none.
        devices = (DeviceSpec(type="unknown", index=0, vendor=vendor),) if vendor else ()
        name, site = NodeName(self._settings["name"]), SiteName(self._settings["site"])
        node = NodeSpec(name=name, site=site, devices=devices)
        return engine_class("local")(
            site=site,
            settings=settings(
                tasks_dir=str(self._root / "tasks"),
                run_as=pwd.getpwuid(os.getuid()).pw_name,
                log_cap_bytes=self._settings["log_cap_bytes"],
            ),
            clock=time.time,
            read_node=lambda _: node,
            workdir_of=self._snapshot,
        )

    def _tell(self, observation: Any) -> None:
        from tercio.model.events import TaskExited

        if not isinstance(observation, TaskExited) or observation in self._events:
            return
        self._events.append(observation)
        if not self._listener and len(self._events) > EVENTS_MAX:
            # Nobody listens; the next one to adopt asks for what it wants to know.
            self._events.popleft()
            self._first += 1
        self._news.set()

    def _snapshot(self, name: str) -> Path:
        directory: Path = self._root / "snapshots"
        return directory / f"{os.path.basename(name)}.tar.gz"

    def _visible(self) -> tuple[str, ...]:
        """Return the accelerators that whoever started Ray here has shown to it, if it chose."""
        try:
            variables = Path(f"/proc/{self._raylet}/environ").read_bytes().split(b"\0")
        except OSError:
            return ()
        for name in (b"CUDA_VISIBLE_DEVICES=", b"ROCR_VISIBLE_DEVICES="):
            for variable in variables:
                if variable.startswith(name) and len(variable) > len(name):
                    return tuple(variable[len(name) :].decode().split(","))
        return ()

    def _start_reaper(self) -> None:
        """Start the process that ends all tasks when the raylet has gone: Ray would reuse
        their devices. It is nobody's child, so that it outlives this actor."""  # noqa: D205, D209
        code = (
            "import os, sys\n"
            "if os.fork(): os._exit(0)\n"
            "os.setsid()\n"
            "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
        )
        paths = os.pathsep.join(path for path in sys.path if path)
        arguments = ["-m", _REAPER, str(self._raylet), str(self._root)]
        with open(self._root / "reaper.log", "ab") as log:
            subprocess.run(
                [sys.executable, "-c", code, *arguments],
                env={**os.environ, "PYTHONPATH": paths},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=True,
                timeout=30,
            )


class _Stream:
    """Lines of a log, read ahead a little; closed when nobody asked for long."""

    def __init__(self, lines: Any) -> None:
        self.used = time.monotonic()
        self._lines: asyncio.Queue[Any] = asyncio.Queue(LINES_MAX)
        self._pump = asyncio.ensure_future(self._read(lines))

    async def next(self) -> tuple[list[Any], bool]:
        """Return lines that are there, waiting for the first a while, and whether it was all."""
        self.used = time.monotonic()
        found: list[Any] = []
        try:
            line = await asyncio.wait_for(self._lines.get(), 5.0)
        except TimeoutError:
            return found, False
        while line is not None:
            found.append(line)
            if self._lines.empty():
                return found, False
            line = self._lines.get_nowait()
        return found, True

    def close(self) -> None:
        """Read no more."""
        self._pump.cancel()

    async def _read(self, lines: Any) -> None:
        try:
            async for line in lines:
                await self._lines.put(line)
        finally:
            await self._lines.put(None)


def _number(payload: bytes) -> int:
    import msgspec

    return msgspec.msgpack.decode(payload, type=int)


def _write_at(path: Path, chunk: bytes, offset: int) -> None:
    with open(path, "r+b" if offset else "wb") as file:
        file.seek(offset)
        file.write(chunk)


def _unpack_code(key: bytes, parent: Path) -> None:
    """Put the server's code into this process's path; its libraries only where none are."""
    from ray.experimental.internal_kv import _internal_kv_get

    home = parent / key.decode().rpartition(":")[2]
    if not home.is_dir():
        archive = _internal_kv_get(key)
        if archive is None:
            raise RuntimeError("the code for the agent is gone from the cluster's store")
        fresh = Path(tempfile.mkdtemp(dir=parent))
        with zipfile.ZipFile(io.BytesIO(archive)) as file:
            file.extractall(fresh)
        # Tasks of other users start from here.
        fresh.chmod(0o755)
        try:
            fresh.rename(home)
        except OSError:
            # Another agent of this machine was first.
            shutil.rmtree(fresh, ignore_errors=True)
            if not home.is_dir():
                raise
    sys.path.insert(0, str(home / "code"))
    for name in [name for name in sys.modules if name.partition(".")[0] == "tercio"]:
        del sys.modules[name]
    try:
        import msgspec  # noqa: F401
    except ImportError:
        sys.path.append(str(home / "libraries"))
