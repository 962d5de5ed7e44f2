"""Pools have the same numbers in whatever order the jobs came whose filters divide the nodes."""

from __future__ import annotations

import pytest

from tercio.model.ids import JobId
from tercio.model.queue import Policy
from tercio.testing import rules
from tercio.testing.build import cluster, gang
from tercio.testing.rounds import Rounds


@pytest.mark.parametrize("names", [("n1", "n2"), ("n2", "n1")])
def test_pools_are_numbered_by_their_nodes(names: tuple[str, str]) -> None:
    r = Rounds(cluster("3n x 1g"), Policy(half_life_s=0.0), checks=rules.ALL)
    for at in range(1, 4):
        r.start(f"x{at}", gang("1x1"), on=(f"n{at}",))
    for name in names:
        r.submit(name, gang("1x1", match=f"name == '{name}'"))
        r.settle()
    memory = r._memory
    assert memory is not None
    found = {name: memory.pools.of(memory.class_of[JobId(name)]) for name in names}
    assert found == {"n1": (("H100", 0),), "n2": (("H100", 1),)}
