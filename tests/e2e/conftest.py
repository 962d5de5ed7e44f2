from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .room import Room


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    """A room without a server."""
    room = Room(tmp_path)
    try:
        yield room
    finally:
        room.close()


@pytest.fixture
def live(room: Room) -> Room:
    """A room with a server on a fresh state directory."""
    room.up()
    return room
