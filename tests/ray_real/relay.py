"""Stands between the server and its bridge to Ray: `relay.py DIR PYTHON ARGUMENTS...`.

The file `fault` in DIR says what becomes of answers: `doubled` gives every frame twice, `held`
keeps what is said of the cluster until the fault is gone and lets everything else pass it,
`old` says of the cluster what was true when the fault began, `torn` ends in the middle of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import BinaryIO

import msgspec

from tercio.engines.ray.messages import (
    Reply,
    Survey,
    decode_answer,
    decode_request,
    framed,
)


class Relay:
    """Passes frames on."""

    def __init__(self, directory: Path, bridge: subprocess.Popen[bytes]) -> None:
        self.directory = directory
        self.bridge = bridge
        self.surveys: dict[int, None] = {}
        self.kept = b""
        self.held: list[bytes] = []
        self.lock = threading.Lock()
        self.is_over = threading.Event()

    @property
    def fault(self) -> str:
        path = self.directory / "fault"
        return path.read_text() if path.exists() else ""

    def pass_requests(self) -> None:
        assert self.bridge.stdin is not None
        while frame := read_frame(sys.stdin.buffer):
            request = decode_request(frame)
            if isinstance(request.body, Survey):
                self.surveys[request.id] = None
            self.bridge.stdin.write(len(frame).to_bytes(4, "big") + frame)
            self.bridge.stdin.flush()
        self.bridge.stdin.close()

    def pass_answers(self) -> None:
        assert self.bridge.stdout is not None
        while frame := read_frame(self.bridge.stdout):
            whole = len(frame).to_bytes(4, "big") + frame
            answer = decode_answer(frame)
            is_survey = isinstance(answer, Reply) and answer.id in self.surveys
            match self.fault:
                case "doubled":
                    self.give(whole + whole)
                case "held" if is_survey:
                    with self.lock:
                        self.held.append(whole)
                    (self.directory / "came").touch()
                case "old" if is_survey and self.kept:
                    assert isinstance(answer, Reply)
                    self.give(framed(msgspec.structs.replace(answer, payload=self.kept)))
                case "torn" if is_survey:
                    self.give(whole[: len(whole) // 2])
                    self.bridge.kill()
                    return
                case _:
                    if is_survey and isinstance(answer, Reply):
                        self.kept = answer.payload
                    self.give(whole)

    def give_held(self) -> None:
        """Give late what was held, once the fault is over."""
        while not self.is_over.wait(0.02):
            if self.fault != "held":
                with self.lock:
                    late, self.held = self.held, []
                for whole in late:
                    self.give(whole)

    def give(self, raw: bytes) -> None:
        with self.lock:
            sys.stdout.buffer.write(raw)
            sys.stdout.buffer.flush()


def read_frame(stream: BinaryIO) -> bytes:
    """Return the next frame, empty at the end."""
    size = stream.read(4)
    return stream.read(int.from_bytes(size, "big")) if len(size) == 4 else b""


def main() -> None:
    directory, command = Path(sys.argv[1]), sys.argv[2:]
    bridge = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    relay = Relay(directory, bridge)
    threading.Thread(target=relay.pass_requests, daemon=True).start()
    threading.Thread(target=relay.give_held, daemon=True).start()
    relay.pass_answers()
    relay.is_over.set()
    bridge.wait()
    sys.stdout.buffer.flush()
    # The thread that reads the server's requests may wait for ever.
    os._exit(bridge.returncode and 1)


if __name__ == "__main__":
    main()
