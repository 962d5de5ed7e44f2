"""A small warm process that forks supervisors, so that a task starts in milliseconds.

Starting Python costs more than everything else that a launch does. This process has done it
before, and holds nothing but a socket to the server: it ends when the server does, and what it
forked goes on. One packet is one supervisor: the control directory, and three descriptors
(plan, answer, errors); the answer is its pid. Imports nothing heavy (see the package).
"""

from __future__ import annotations

import _socket
import array
import gc
import os
import signal
import sys

from tercio.engines.local import processes, supervisor

_PACKET_BYTES = 8192


def main() -> None:
    """Serve the socket that is file descriptor 0 until its other end is closed."""
    os.chdir("/")
    processes.name_process("tercio-spawner")
    socket = _socket.socket(fileno=0)
    # Nobody waits for the supervisors here; the kernel is to forget them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # What exists now is never collected, so that its pages stay shared after a fork.
    gc.freeze()
    room = _socket.CMSG_SPACE(3 * array.array("i").itemsize)
    while True:
        packet, extra, _, _ = socket.recvmsg(_PACKET_BYTES, room, _socket.MSG_CMSG_CLOEXEC)
        if not packet:
            return
        descriptors = array.array("i")
        for _, _, payload in extra:
            descriptors.frombytes(payload)
        pid = os.fork()
        if pid == 0:
            _become_supervisor(os.fsdecode(packet), descriptors)
        for fd in descriptors:
            os.close(fd)
        socket.send(str(pid).encode())


def _become_supervisor(directory: str, descriptors: array.array[int]) -> None:
    code = 1
    try:
        os.setsid()
        for target, fd in enumerate(descriptors):
            os.dup2(fd, target, inheritable=False)
            os.close(fd)
        supervisor.main(directory)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)
