"""NCCL by the fabric of a gang's nodes: few variables, and those that slow a job taken out.

Facts come from node labels, which a site's engine reports:

| label | meaning |
|---|---|
| `fabric` | `infiniband`, `roce`, `efa` or `ethernet` |
| `nccl-interface` | network interface of the first contact, such as `eth0` |
| `nccl-hca` | RDMA adapters, comma separated, such as `mlx5_0,mlx5_1`: exactly these |
| `nccl-gid-index`, `nccl-traffic-class` | RoCE only |

Nothing is set for a gang on one node, or where the nodes do not agree. The two groups of
variables are those of NVIDIA's page "Environment Variables" (NCCL documentation): system
configuration may be set by a platform, debugging variables must not stay set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from tercio.model.node import NodeSpec

FABRICS: Final = ("infiniband", "roce", "efa", "ethernet")
KEEP: Final = "TERCIO_KEEP_NCCL"
DEBUGGING: Final = (
    "NCCL_ALGO",
    "NCCL_BUFFSIZE",
    "NCCL_CHECKS_DISABLE",
    "NCCL_CHECK_POINTERS",
    "NCCL_IB_DISABLE",
    "NCCL_LAUNCH_MODE",
    "NCCL_LL_THRESHOLD",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_NCHANNELS",
    "NCCL_NET_DISABLE_INTRA",
    "NCCL_NTHREADS",
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_PROTO",
    "NCCL_PXN_DISABLE",
    "NCCL_SHM_DISABLE",
    "NCCL_SINGLE_RING_THRESHOLD",
    "NCCL_TREE_THRESHOLD",
)
"""They switch paths off or fix what NCCL chooses better by itself."""

_BY_LABEL: Final = MappingProxyType(
    {
        "infiniband": (("nccl-interface", "NCCL_SOCKET_IFNAME"), ("nccl-hca", "NCCL_IB_HCA")),
        "roce": (
            ("nccl-interface", "NCCL_SOCKET_IFNAME"),
            ("nccl-hca", "NCCL_IB_HCA"),
            ("nccl-gid-index", "NCCL_IB_GID_INDEX"),
            ("nccl-traffic-class", "NCCL_IB_TC"),
        ),
        "efa": (("nccl-interface", "NCCL_SOCKET_IFNAME"),),
        "ethernet": (("nccl-interface", "NCCL_SOCKET_IFNAME"),),
    }
)


def nccl_variables(nodes: Iterable[NodeSpec]) -> dict[str, str]:
    """Return what NCCL needs on these nodes; empty for one node and for unknown fabrics."""
    labels = [node.labels for node in nodes]
    if len(labels) < 2:
        return {}
    fabric = _agreed(labels, "fabric")
    env: dict[str, str] = {}
    for label, variable in _BY_LABEL.get(fabric, ()):
        value = _agreed(labels, label)
        if value:
            # `=` asks for exactly these: without it a name is a prefix, and mlx5_1 takes mlx5_10.
            env[variable] = f"={value}" if variable == "NCCL_IB_HCA" else value
    if fabric == "efa":
        env["FI_PROVIDER"] = "efa"
    return env


def agreed_fabric(nodes: Iterable[NodeSpec]) -> str:
    """Return the fabric that all these nodes have; empty for one node, and where they differ."""
    labels = [node.labels for node in nodes]
    return _agreed(labels, "fabric") if len(labels) > 1 else ""


def fabric_lines(nodes: Iterable[NodeSpec], env: Mapping[str, str]) -> tuple[str, ...]:
    """Return what is set for NCCL and why, and what of the job's own `env` is left out.

    For people, one variable a line.
    """
    found = tuple(nodes)
    fabric = _agreed([node.labels for node in found], "fabric") if found else ""
    label_of = {variable: label for label, variable in _BY_LABEL.get(fabric, ())}
    passed = without_debugging(env)
    lines = []
    for name, value in nccl_variables(found).items():
        label = label_of.get(name, "fabric")
        if name in passed:
            lines.append(f"{name}={passed[name]}: the job's own, in place of {value}")
        else:
            lines.append(f"{name}={value}: {fabric}, label {label} of all {len(found)} nodes")
    lines += [f"{name} left out: for debugging only" for name in env if name not in passed]
    return tuple(lines)


def without_debugging(env: Mapping[str, str]) -> dict[str, str]:
    """Return a job's own variables without NCCL's debugging ones, unless it keeps them."""
    if env.get(KEEP) == "1":
        return dict(env)
    return {name: value for name, value in env.items() if name not in DEBUGGING}


def fabric_advice(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return a warning that names what is taken out."""
    found = [name for name in env if name in DEBUGGING]
    if not found or env.get(KEEP) == "1":
        return ()
    return (
        f"{', '.join(found)}: for debugging NCCL only, and slow in production, so not passed to "
        f"the tasks; set {KEEP}: '1' beside it to pass it all the same",
    )


def _agreed(labels: list[dict[str, str]], name: str) -> str:
    """The value of a label that all nodes share, else nothing."""
    values = dict.fromkeys(own.get(name, "") for own in labels)
    return next(iter(values)) if len(values) == 1 else ""
