"""Live readings through one child process that stays: a hung driver costs a deadline, not us.

`python -m tercio.collect.sampling` is the child: for every line on its input it prints one
`Sample` as a line of JSON. A line may hold power limits, which are set before it reads.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time

import msgspec

from tercio.model.readings import DeviceTelemetry

_MODULE = "tercio.collect.sampling"
_CHUNK = 1 << 16


class Sample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the vendors' libraries say now."""

    devices: tuple[DeviceTelemetry, ...] = ()
    driver: str = ""
    calls: int = 0
    notes: dict[str, str] = {}


class Sampler:
    """Asks the child. Not for several threads at once.

    Attributes:
        limits_w: power limits that the devices should have, by UUID; those left out are left.
    """

    def __init__(self, *, timeout_s: float = 20.0) -> None:
        self.limits_w: dict[str, int] = {}
        self._timeout_s = timeout_s
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Process of the child, None before the first sample and after a missed deadline."""
        return self._child.pid if self._child is not None else None

    def sample(self) -> Sample:
        """Return a sample; blocks until the child has answered or its deadline.

        A missed deadline is a note named `probe`, and costs the child its life.
        """
        try:
            child = self._child if self._is_up() else self._start()
            assert child is not None
            assert child.stdin is not None
            asked = msgspec.json.encode(self.limits_w) if self.limits_w else b""
            child.stdin.write(asked + b"\n")
            child.stdin.flush()
            line = self._answer(child)
        except (OSError, subprocess.SubprocessError) as error:
            self.close()
            return Sample(notes={"probe": f"the device probe failed: {error}"})
        if line is None:
            self.close()
            return Sample(notes={"probe": f"no answer within {self._timeout_s:g}s"})
        try:
            return msgspec.json.decode(line, type=Sample)
        except msgspec.DecodeError as error:
            self.close()
            return Sample(notes={"probe": f"the device probe failed: {error}"})

    def close(self) -> None:
        """End the child; one that hangs in the driver is left to the kernel."""
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        for stream in (child.stdin, child.stdout):
            if stream is not None:
                stream.close()
        try:
            child.wait(1.0)
        except subprocess.TimeoutExpired:
            # In uninterruptible sleep inside the driver: forget it without a warning.
            child.returncode = -9

    def _is_up(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def _start(self) -> subprocess.Popen[bytes]:
        self.close()
        # No current directory on the module path: it may belong to anybody.
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        return self._child

    def _answer(self, child: subprocess.Popen[bytes]) -> bytes | None:
        assert child.stdout is not None
        fd = child.stdout.fileno()
        found = b""
        until_s = time.monotonic() + self._timeout_s
        while not found.endswith(b"\n"):
            left_s = until_s - time.monotonic()
            if left_s <= 0 or not select.select([fd], [], [], left_s)[0]:
                return None
            chunk = os.read(fd, _CHUNK)
            if not chunk:
                raise OSError(f"the probe ended with code {child.wait(5.0)}")
            found += chunk
        return found


def main() -> None:
    """Answer until the input ends: the child's whole life."""
    from tercio.collect.live import NvmlReader

    reader = NvmlReader()
    for line in sys.stdin.buffer:
        before = reader.calls
        devices: tuple[DeviceTelemetry, ...] = ()
        notes: dict[str, str] = {}
        limits_w = msgspec.json.decode(line, type=dict[str, int]) if line.strip() else {}
        try:
            devices = reader.read(limits_w)
            notes.update(reader.refused)
        except Exception as error:
            # The library raises classes of its own, whatever the driver did to it.
            notes["nvidia"] = str(error) or type(error).__name__
        sample = Sample(
            devices=devices, driver=reader.driver, calls=reader.calls - before, notes=notes
        )
        sys.stdout.buffer.write(msgspec.json.encode(sample) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
