"""A command in a task, joined to this terminal: raw mode, window size, input as it is typed."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from tercio.cli.errors import ExitCode
from tercio.client import RemoteCommand
from tercio.errors import UserError

_CHUNK_BYTES: Final = 32 * 1024


def run_remote(remote: RemoteCommand, *, has_terminal: bool) -> int:
    """Copy input and output until the command ends, and return its exit code."""
    wake_read, wake_write = os.pipe()
    sender = threading.Thread(
        target=_send_input, args=(remote, wake_read), kwargs={"has_terminal": has_terminal}
    )
    try:
        with _raw_terminal(wake_write) if has_terminal else _nothing():
            sender.start()
            try:
                for chunk in remote.output():
                    sys.stdout.buffer.write(chunk)
                    sys.stdout.buffer.flush()
            finally:
                os.write(wake_write, b"q")
                sender.join()
                if remote.exit_code is None:
                    _close(remote)
    finally:
        os.close(wake_read)
        os.close(wake_write)
    return ExitCode.FAILED if remote.exit_code is None else remote.exit_code


def terminal_size() -> os.terminal_size:
    """Return the size of the terminal itself: COLUMNS and LINES may be of another time.

    One that does not know its size (a fresh pseudo-terminal says 0 by 0) is taken for 80 by 24.
    """
    try:
        size = os.get_terminal_size(sys.stdin.fileno())
    except (OSError, ValueError):
        return os.terminal_size((80, 24))
    return os.terminal_size((size.columns or 80, size.lines or 24))


def _send_input(remote: RemoteCommand, wake: int, *, has_terminal: bool) -> None:
    """Send what is typed, and window sizes, until told to quit by a byte on `wake`."""
    source = sys.stdin.fileno()
    watched = [source, wake]
    try:
        while True:
            ready, _, _ = select.select(watched, [], [])
            if wake in ready:
                if os.read(wake, 1) == b"q":
                    return
                size = terminal_size()
                remote.resize(rows=size.lines, columns=size.columns)
            elif source in ready:
                chunk = os.read(source, _CHUNK_BYTES)
                remote.write(chunk)
                if not chunk:
                    watched = [wake]
    except UserError as error:
        # The command may have ended between the key and its sending: no error of the user.
        if error.code not in ("not_found", "conflict") and not has_terminal:
            sys.stderr.write(f"error: the input could not be sent: {error.message}\n")


@contextmanager
def _raw_terminal(wake: int) -> Iterator[None]:
    """Give every key to the command, Ctrl-C too, and tell `wake` of a new window size."""
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def resized(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        os.write(wake, b"r")

    previous = signal.signal(signal.SIGWINCH, resized)
    try:
        tty.setraw(terminal)
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
        signal.signal(signal.SIGWINCH, previous)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def _close(remote: RemoteCommand) -> None:
    try:
        remote.close()
    except UserError:
        return
