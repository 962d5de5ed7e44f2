"""The bare machine, checked once more when a test is over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tercio.core.cluster import Cluster
from tercio.core.invariants import check

from .machine import Machine


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine()
    yield machine
    # Whatever a test did, the checkpoint must give the same machine back.
    again = Cluster.from_image(machine.cluster.image())
    check(again)
    assert again.state_hash() == machine.cluster.state_hash()
    assert dict(again.snapshot().running) == dict(machine.cluster.snapshot().running)
    assert dict(again.snapshot().waiting) == dict(machine.cluster.snapshot().waiting)
