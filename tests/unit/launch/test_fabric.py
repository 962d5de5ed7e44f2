"""NCCL's variables by the fabric of the nodes."""

import pytest

from tercio.launch.fabric import DEBUGGING, KEEP, fabric_lines, nccl_variables
from tercio.launch.recipes import advise
from tercio.model.job import JobSpec
from tercio.model.node import NodeSpec


def nodes(count=2, **labels):
    named = {name.replace("_", "-"): value for name, value in labels.items()}
    return [NodeSpec(name=f"n{n}", site="s", labels=named) for n in range(count)]


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [
        (
            {"fabric": "infiniband", "nccl_interface": "eth0", "nccl_hca": "mlx5_0,mlx5_1",
             "nccl_gid_index": "3"},
            {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_HCA": "=mlx5_0,mlx5_1"},
        ),
        (
            {"fabric": "roce", "nccl_hca": "mlx5_0", "nccl_gid_index": "3",
             "nccl_traffic_class": "106"},
            {"NCCL_IB_HCA": "=mlx5_0", "NCCL_IB_GID_INDEX": "3", "NCCL_IB_TC": "106"},
        ),
        ({"fabric": "efa"}, {"FI_PROVIDER": "efa"}),
        ({"nccl_interface": "eth0"}, {}),
    ],
)  # fmt: skip
def test_a_fabric_sets_few_variables(labels, wanted):
    assert nccl_variables(nodes(**labels)) == wanted
    assert nccl_variables(nodes(1, **labels)) == {}


def test_nodes_that_disagree_set_nothing():
    mixed = [*nodes(1, fabric="roce", nccl_hca="a"), *nodes(1, fabric="infiniband", nccl_hca="a")]
    assert nccl_variables(mixed) == {}
    two = [*nodes(1, fabric="roce", nccl_hca="a"), *nodes(1, fabric="roce", nccl_hca="b")]
    assert nccl_variables(two) == {}


def test_debugging_variables_are_taken_out_with_a_warning():
    from gangs import launches

    env = {"NCCL_P2P_DISABLE": "1", "NCCL_DEBUG": "INFO", "MINE": "x"}
    (launch,) = launches(["n1"], env=env)
    assert "NCCL_P2P_DISABLE" not in launch.env
    assert (launch.env["NCCL_DEBUG"], launch.env["MINE"]) == ("INFO", "x")
    (told,) = advise(JobSpec(name="x", run="true", env=env))
    assert told.startswith("NCCL_P2P_DISABLE: for debugging")
    kept = {**env, KEEP: "1"}
    (launch,) = launches(["n1"], env=kept)
    assert launch.env["NCCL_P2P_DISABLE"] == "1"
    assert advise(JobSpec(name="x", run="true", env=kept)) == ()
    assert list(DEBUGGING) == sorted(DEBUGGING)


def test_it_is_said_what_is_set_and_why_and_what_is_left_out():
    labels = {"fabric": "infiniband", "nccl_interface": "eth0", "nccl_hca": "mlx5_0"}
    env = {"NCCL_P2P_DISABLE": "1", "NCCL_SOCKET_IFNAME": "ib0", "MINE": "x"}
    assert fabric_lines(nodes(**labels), env) == (
        "NCCL_SOCKET_IFNAME=ib0: the job's own, in place of eth0",
        "NCCL_IB_HCA==mlx5_0: infiniband, label nccl-hca of all 2 nodes",
        "NCCL_P2P_DISABLE left out: for debugging only",
    )
    (told,) = fabric_lines(nodes(fabric="efa"), {})
    assert told == "FI_PROVIDER=efa: efa, label fabric of all 2 nodes"
    assert fabric_lines(nodes(1, **labels), {}) == ()
    assert fabric_lines([], {}) == ()
