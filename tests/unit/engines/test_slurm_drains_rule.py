"""Which nodes are drained and which drains are lifted, from what Slurm says of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tercio.engines.slurm.accounts import Account
from tercio.engines.slurm.commands import Done
from tercio.engines.slurm.drains import Drains
from tercio.engines.slurm.facts import SlurmNode
from tercio.engines.slurm.tables import Openness
from tercio.errors import EngineError

OPEN = SlurmNode(name="n1", openness=Openness.OPEN)


def drained(name: str, reason: str) -> SlurmNode:
    return SlurmNode(name=name, openness=Openness.CLOSED, is_drained=True, reason=reason)


class Scontrol:
    """Takes updates, or refuses them."""

    where = "here"

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.updates: list[str] = []

    async def run(
        self, argv: Sequence[str], *, stdin: bytes = b"", account: Account | None = None
    ) -> Done:
        self.updates.append(" ".join(argv[2:]))
        return Done(code=self.code, out=b"", err="Access/permission denied" if self.code else "")

    def process(self, argv: Sequence[str], account: Account | None) -> Any:
        raise AssertionError(argv)


def keep(drains: Drains, wanted: dict[str, str], *nodes: SlurmNode) -> None:
    asyncio.run(drains.keep(wanted, nodes, owner="cafe"))


def test_only_what_is_ours_is_lifted() -> None:
    scontrol = Scontrol()
    keep(
        Drains(scontrol), {}, OPEN, drained("n2", "tercio: hot (cafe)"), drained("n3", "bad fan"),
        drained("n4", "tercio: hot (beef)"), drained("n5", "tercio: hot (cafe)"),
    )  # fmt: skip
    # Another server's, and what only looks like ours, stay.
    assert scontrol.updates == ["nodename=n2,n5 state=undrain"]


def test_a_cordon_drains_once_and_what_others_drained_keeps_their_reason() -> None:
    scontrol = Scontrol()
    drains = Drains(scontrol)
    wanted = {"n1": 'a  "hot"\nrow', "n2": "fan", "n3": "new word"}
    nodes = (OPEN, drained("n2", "theirs"), drained("n3", "tercio: old word (cafe)"))
    keep(drains, wanted, *nodes)
    assert scontrol.updates == [
        "nodename=n1 state=drain reason=tercio: a 'hot' row (cafe)",
        "nodename=n3 state=drain reason=tercio: new word (cafe)",
    ]
    # Somebody opened n1 against it.
    keep(drains, wanted, OPEN)
    assert len(scontrol.updates) == 2
    keep(drains, {}, OPEN)
    keep(drains, {"n1": wanted["n1"]}, OPEN)
    assert len(scontrol.updates) == 3


def test_a_refusal_is_told_and_tried_again() -> None:
    scontrol = Scontrol(code=1)
    drains = Drains(scontrol)
    with pytest.raises(EngineError, match="permission denied"):
        keep(drains, {"n1": "hot"}, OPEN)
    scontrol.code = 0
    keep(drains, {"n1": "hot"}, OPEN)
    assert len(scontrol.updates) == 2
