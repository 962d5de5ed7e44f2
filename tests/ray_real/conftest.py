from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.room import Room

from .lab import Lab


@pytest.fixture(scope="session")
def shared_lab() -> Iterator[Lab]:
    """The cluster of the whole run, started for the first test that wants it."""
    lab = Lab()
    try:
        lab.start()
        yield lab
    finally:
        lab.close()


@pytest.fixture
def lab(shared_lab: Lab) -> Lab:
    """The cluster with all its nodes, whatever the test before did to them."""
    gone = [number for number in range(1, 5) if f"n{number}" not in shared_lab.nodes]
    for number in gone:
        shared_lab.start_node(number)
    if gone:
        shared_lab.wait_nodes(5)
    return shared_lab


@pytest.fixture
def room(tmp_path: Path, lab: Lab) -> Iterator[Room]:
    """A room whose server drives the cluster and nothing else; not started yet."""
    room = Room(tmp_path)
    room.env["TERCIO_LOCAL__ENABLED"] = "false"
    room.cli("site", "add", "ray", "lab", "--address", lab.address, "--poll", "0.5",
             "--node-dir", str(lab.home / "nodes"))  # fmt: skip
    try:
        yield room
    finally:
        room.close()
