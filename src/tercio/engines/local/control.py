"""The server's side of spawner and supervisors: starting one, and sending it orders."""

from __future__ import annotations

import array
import asyncio
import contextlib
import marshal
import os
import signal
import socket
import struct
import sys
from pathlib import Path

import tercio
from tercio.engines.local import records
from tercio.engines.local.processes import Plan

_TIMEOUT_S = 20.0
_BOOT = """
import sys
sys.path.append(sys.argv[1])
from tercio.engines.local.spawner import main
main()
"""


class Spawner:
    """Starts supervisors through the spawner process, which it starts again when it is gone."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._pid = 0
        self._lock = asyncio.Lock()

    def start(self) -> None:
        """Start the spawner process, if there is none; it gets warm by itself."""
        if self._socket is not None:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_TIMEOUT_S)
        root = str(Path(tercio.__file__).parent.parent)
        with theirs:
            self._pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", "-c", _BOOT, root],
                {},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, theirs.fileno(), 0),
                    (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
                ],
                setsid=True,
                setsigmask=[],
                setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP],
            )
        self._socket = ours

    async def spawn(self, plan: Plan) -> tuple[int, int]:
        """Start the supervisor of a plan; return its pid and the descriptor of its answer.

        The plan goes through memory, so that no secret touches a disk or an argument list.
        Raises OSError.
        """
        async with self._lock:
            try:
                return await asyncio.to_thread(self._spawn, plan)
            except OSError:
                # The spawner was killed, say. A start that it began before is found by its lock.
                await self.close()
                return await asyncio.to_thread(self._spawn, plan)

    async def close(self) -> None:
        """End the spawner process; supervisors go on."""
        if self._socket is None:
            return
        self._socket.close()
        self._socket = None
        with contextlib.suppress(ChildProcessError):
            await asyncio.to_thread(os.waitpid, self._pid, 0)

    def _spawn(self, plan: Plan) -> tuple[int, int]:
        self.start()
        assert self._socket is not None
        with contextlib.ExitStack() as theirs:
            memory = os.memfd_create("tercio-plan", os.MFD_CLOEXEC)
            theirs.callback(os.close, memory)
            os.write(memory, marshal.dumps(plan.to_dict()))
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            errors = os.open(f"{plan.directory}/supervisor.err", flags, 0o600)
            theirs.callback(os.close, errors)
            answer, answer_child = os.pipe2(os.O_CLOEXEC)
            theirs.callback(os.close, answer_child)
            try:
                packet = os.fsencode(plan.directory)
                reply = _ask(self._socket, packet, (memory, answer_child, errors))
            except BaseException:
                os.close(answer)
                raise
        return int(reply), answer


async def read_answer(fd: int, *, timeout_s: float) -> str:
    """Return what a supervisor said, empty when it died or took too long. Closes `fd`."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[bytes] = loop.create_future()

    def read() -> None:
        loop.remove_reader(fd)
        if not answer.done():
            answer.set_result(os.read(fd, 65536))

    loop.add_reader(fd, read)
    try:
        async with asyncio.timeout(timeout_s):
            return (await answer).decode(errors="replace")
    except TimeoutError:
        return ""
    finally:
        loop.remove_reader(fd)
        os.close(fd)


def listener_pid(directory: Path, *, timeout_s: float) -> int:
    """Return the process that listens in a control directory. Raises OSError when none does."""
    with connect(directory, timeout_s=timeout_s) as connection:
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", peer)[0])


def connect(directory: Path, *, timeout_s: float) -> socket.socket:
    """Connect to the supervisor of a task. Raises OSError when it does not answer."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.settimeout(timeout_s)
        # A socket address holds 108 bytes; the descriptor makes any path fit.
        connection.connect(f"/proc/self/fd/{fd}/{records.CONTROL}")
    except BaseException:
        connection.close()
        raise
    finally:
        os.close(fd)
    return connection


def ask(connection: socket.socket, *fields: str, descriptors: tuple[int, ...] = ()) -> list[str]:
    """Send one order and return the fields of its answer. Raises OSError."""
    packet = "\0".join(fields).encode(errors="surrogateescape")
    return _ask(connection, packet, descriptors).decode(errors="replace").split("\0")


def order(directory: Path, *fields: str, timeout_s: float) -> None:
    """Send one order to the supervisor of a task and wait for its `ok`. Raises OSError."""
    with connect(directory, timeout_s=timeout_s) as connection:
        ask(connection, *fields)


def _ask(connection: socket.socket, packet: bytes, descriptors: tuple[int, ...]) -> bytes:
    extra = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    connection.sendmsg([packet], extra if descriptors else [])
    answer = connection.recv(65536)
    if not answer:
        raise ConnectionResetError("the other end closed the connection")
    return answer
