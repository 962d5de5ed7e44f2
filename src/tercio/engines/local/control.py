"""The server's side of a supervisor: starting one, and sending it orders."""

from __future__ import annotations

import array
import marshal
import os
import signal
import socket
import sys
from pathlib import Path

import tercio
from tercio.engines.local import records
from tercio.engines.local.processes import Plan

_BOOT = (
    "import sys; sys.path.append(sys.argv[2]); "
    "from tercio.engines.local.supervisor import main; main(sys.argv[1])"
)


def spawn_supervisor(plan: Plan) -> tuple[int, int]:
    """Start the supervisor of a plan; return its pid and the descriptor of its answer.

    The plan goes through memory, so that no secret touches a disk or an argument list.
    """
    memory = os.memfd_create("tercio-plan", os.MFD_CLOEXEC)
    answer, answer_child = os.pipe2(os.O_CLOEXEC)
    try:
        os.write(memory, marshal.dumps(plan.to_dict()))
        os.lseek(memory, 0, os.SEEK_SET)
        root = str(Path(tercio.__file__).parent.parent)
        errors = f"{plan.directory}/supervisor.err"
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", "-c", _BOOT, plan.directory, root],
            {},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, memory, 0),
                (os.POSIX_SPAWN_DUP2, answer_child, 1),
                (os.POSIX_SPAWN_OPEN, 2, errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE],
        )
    except BaseException:
        os.close(answer)
        raise
    finally:
        os.close(memory)
        os.close(answer_child)
    return pid, answer


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
    extra = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    connection.sendmsg([packet], extra if descriptors else [])
    answer = connection.recv(65536)
    if not answer:
        raise ConnectionResetError("the supervisor closed the connection")
    return answer.decode(errors="replace").split("\0")


def order(directory: Path, *fields: str, timeout_s: float) -> None:
    """Send one order to the supervisor of a task and wait for its `ok`. Raises OSError."""
    with connect(directory, timeout_s=timeout_s) as connection:
        ask(connection, *fields)
