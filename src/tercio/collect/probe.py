"""Asks the vendors' libraries in a child process, because a sick driver can hang its caller.

`python -m tercio.collect.probe` is that child: it prints one `Probe` as JSON.
"""

from __future__ import annotations

import subprocess
import sys

import msgspec

from tercio.collect.reading import DeviceReading, Probe

_MODULE = "tercio.collect.probe"


def probe_devices(*, timeout_s: float = 20.0) -> Probe:
    """Return the accelerators of this machine; blocks until the child answers or its deadline.

    A child that hangs or fails gives a probe without devices and a note that says so.
    """
    # No current directory on the module path: it may belong to anybody.
    argv = [sys.executable, "-P", "-m", _MODULE]
    try:
        done = subprocess.run(
            argv, capture_output=True, timeout=timeout_s, check=True, stdin=subprocess.DEVNULL
        )
        return msgspec.json.decode(done.stdout, type=Probe)
    except subprocess.TimeoutExpired:
        return Probe(notes={"probe": f"the driver did not answer within {timeout_s:g}s"})
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").strip().splitlines()
        why = lines[-1] if lines else f"exit code {error.returncode}"
        return Probe(notes={"probe": f"the device probe failed: {why}"})
    except (OSError, msgspec.DecodeError) as error:
        return Probe(notes={"probe": f"the device probe failed: {error}"})


def read_here() -> Probe:
    """Ask every library that is installed, in this process."""
    devices: list[DeviceReading] = []
    notes: dict[str, str] = {}
    for vendor, read in (("nvidia", _nvidia), ("amd", _amd)):
        try:
            devices.extend(read())
        except ImportError as error:
            notes[vendor] = f"library not installed: {error}"
        except Exception as error:
            # Libraries raise classes of their own; whatever it is, the other vendor is asked.
            notes[vendor] = f"{type(error).__name__}: {error}"
    return Probe(devices=tuple(devices), notes=notes)


def _nvidia() -> tuple[DeviceReading, ...]:
    from tercio.collect.nvml import read_nvidia

    return read_nvidia()


def _amd() -> tuple[DeviceReading, ...]:
    from tercio.collect.amdsmi import read_amd

    return read_amd()


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(read_here()))
