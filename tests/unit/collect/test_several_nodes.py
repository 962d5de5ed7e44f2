"""One machine declared as several nodes."""

from __future__ import annotations

import pytest

from tercio.collect.several import SeveralNodes, parse_nodes
from tercio.errors import UserError
from tercio.model.ids import NodeName
from tercio.testing import make_node

TEXT = "n1=0-1 rack=r1 ssd=true; n2=2,3 ; n3=4 spare"


def test_devices_cores_and_memory_are_shared_out() -> None:
    machine = make_node("box", devices=5, cpus=9, memory_gib=3, foreign_devices=(3,))
    n1, n2, n3 = SeveralNodes(lambda _: machine, parse_nodes(TEXT))(lambda _: True)
    assert [d.uuid for d in n2.devices] == ["box-2", "box-3"]
    assert [d.index for d in n2.devices] == [0, 1]
    assert (n2.foreign_devices, n1.foreign_devices) == ((1,), ())
    assert (n1.cpus_milli, n1.memory_bytes) == (3000, 1024**3)
    assert n1.labels == {"rack": "r1", "ssd": "true"}
    assert (n3.name, n3.labels) == (NodeName("n3"), {"spare": "true"})


def test_devices_are_numbers() -> None:
    (node,) = parse_nodes("n1=8-11")
    assert node.devices == (8, 9, 10, 11)


@pytest.mark.parametrize(
    "text",
    ["n1", "n1=", "n1=0;n1=1", "n1=0;n2=0", "n1=2-x", "n1=11-8", "n1=0 rack=", "n1=0 sparse",
     "n1=0 a=b=c", " ; "],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_nodes(text)
    assert caught.value.field == "local.nodes"
