"""One machine declared as several nodes."""

from __future__ import annotations

import pytest

from tercio.collect.several import SeveralNodes, parse_nodes
from tercio.errors import UserError
from tercio.model.ids import NodeName
from tercio.testing import make_node

TEXT = "n1=0-1; n2=2,3 ; n3=4 spare"


def test_devices_cores_and_memory_are_shared_out() -> None:
    machine = make_node("box", devices=5, cpus=9, memory_gib=3, foreign_devices=(3,))
    n1, n2, n3 = SeveralNodes(lambda _: machine, parse_nodes(TEXT))(lambda _: True)
    assert [d.uuid for d in n2.devices] == ["box-2", "box-3"]
    assert [d.index for d in n2.devices] == [0, 1]
    assert (n2.foreign_devices, n1.foreign_devices) == ((1,), ())
    assert (n1.cpus_milli, n1.memory_bytes) == (3000, 1024**3)
    assert (n3.name, n3.labels) == (NodeName("n3"), {"spare": "true"})


@pytest.mark.parametrize("text", ["n1", "n1=", "n1=0;n1=1", "n1=0;n2=0", "n1=2-x", " ; "])
def test_what_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_nodes(text)
    assert caught.value.field == "local.nodes"
