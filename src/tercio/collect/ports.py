"""InfiniBand and RoCE ports as sysfs shows them: state, rate and error counters."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tercio.model.readings import PortTelemetry

ROOT: Final = Path("/sys/class/infiniband")


def read_ports(root: Path = ROOT) -> tuple[PortTelemetry, ...]:
    """Return every port by name; none on a machine without such a network."""
    found = []
    for path in sorted(root.glob("*/ports/*")):
        counters: dict[str, int] = {}
        for file in sorted([*path.glob("counters/*"), *path.glob("hw_counters/*")]):
            text = _text(file)
            if text.isdigit():
                counters[file.name] = int(text)
        found.append(
            PortTelemetry(
                port=f"{path.parents[1].name}:{path.name}",
                state=_text(path / "state"),
                phys_state=_text(path / "phys_state"),
                rate=_text(path / "rate"),
                counters=counters,
            )
        )
    return tuple(found)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
