"""A spinner for what takes long: on stderr, on terminals, and only after 300 ms."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Final

from tercio.cli.session import Session

_FIRST_S: Final = 0.3
_FRAME_S: Final = 0.1
_FRAMES: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class Progress:
    """Shows that something goes on while its block runs; silent when stderr is no terminal."""

    def __init__(self, session: Session, text: str, *, first_s: float = _FIRST_S) -> None:
        self._text = text
        self._first_s = first_s
        self._is_shown = sys.stderr.isatty() and not session.is_quiet
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._turn, daemon=True)

    @property
    def is_shown(self) -> bool:
        """Whether a person can see it."""
        return self._is_shown

    def say(self, text: str) -> None:
        """Change the text."""
        self._text = text

    def __enter__(self) -> Progress:
        """Start to show it."""
        if self._is_shown:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wipe it."""
        self._ended.set()
        if self._is_shown:
            self._thread.join()

    def _turn(self) -> None:
        if self._ended.wait(self._first_s):
            return
        started_s = time.monotonic() - self._first_s
        turn = 0
        while True:
            elapsed_s = time.monotonic() - started_s
            frame = _FRAMES[turn % len(_FRAMES)]
            sys.stderr.write(f"\r\x1b[K{frame} {self._text} {elapsed_s:.0f}s")
            sys.stderr.flush()
            turn += 1
            if self._ended.wait(_FRAME_S):
                break
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
