"""Which engines a configuration connects."""

from __future__ import annotations

import pytest

from tercio.api.connect import simulated_nodes
from tercio.errors import UserError


def test_a_simulated_cluster_is_a_shape_or_a_file(tmp_path):
    assert len(simulated_nodes("2x4")) == 2
    file = tmp_path / "c.yaml"
    file.write_text("nodes: [{name: a, devices: H100:8}]")
    assert [node.name for node in simulated_nodes(str(file))] == ["a"]


@pytest.mark.parametrize("text", ["8y8", "no/such.yaml"])
def test_neither_a_shape_nor_a_file_is_said_so(text):
    with pytest.raises(UserError, match="neither a shape nor a file") as caught:
        simulated_nodes(text)
    assert caught.value.field == "sim.cluster"
    assert "8x8" in (caught.value.hint or "")
