"""Connects to Ray and reads what it says about nodes, placement groups and workers."""

from __future__ import annotations

import concurrent.futures
import contextlib
from typing import Any, Final

import ray
from ray.util import placement_group_table

from tercio.engines.ray.messages import Bundle, Facts, RayNode, WorkerUse
from tercio.engines.ray.settings import RaySettings

_STATS_S: Final = 5.0
_READERS: Final = 16
_HELD_STATES: Final = ("CREATED", "RESCHEDULING")
_WAITING_STATES: Final = ("PENDING", "PREPARED")
_pool: Final = concurrent.futures.ThreadPoolExecutor(_READERS, "ray-stats")


def connect(settings: RaySettings) -> None:
    """Join the cluster as a driver that asks for nothing. Blocks; raises what Ray raises."""
    ray.init(
        address=settings.address,
        namespace=settings.namespace,
        log_to_driver=False,
        configure_logging=False,
    )


def end_old_agents(settings: RaySettings, *, version: str) -> None:
    """End the agents that an older version of this server left; their tasks go on."""
    for actor in ray.util.list_named_actors(all_namespaces=True):
        name = actor["name"]
        is_ours = actor["namespace"] == settings.namespace and name.startswith("agent:")
        if is_ours and not name.endswith(f":{version}"):
            with contextlib.suppress(ValueError):
                ray.kill(ray.get_actor(name, namespace=settings.namespace), no_restart=True)


def survey() -> Facts:
    """Read the whole cluster: two questions to the head, and one to each node's raylet."""
    told = ray.nodes()
    alive = [node for node in told if node["Alive"]]
    table = placement_group_table()
    uses: list[WorkerUse] = []
    blind: list[str] = []
    asked = {node["NodeID"]: _pool.submit(_uses, node) for node in alive}
    for node_id, answer in asked.items():
        try:
            uses += answer.result(timeout=_STATS_S * 2)
        except Exception:
            # An old or a busy raylet, or no grpc here: the server plans without that.
            blind.append(node_id)
    return Facts(
        nodes=tuple(_node(node) for node in told),
        bundles=tuple(_bundles(table)),
        uses=tuple(uses),
        blind=tuple(blind),
        waiting=tuple(g["name"] for g in table.values() if g["state"] in _WAITING_STATES),
        stranded=tuple(_stranded(table, {node["NodeID"] for node in alive})),
    )


def _node(node: dict[str, Any]) -> RayNode:
    return RayNode(
        id=node["NodeID"],
        name=node.get("NodeName") or node["NodeManagerAddress"],
        address=node["NodeManagerAddress"],
        hostname=node["NodeManagerHostname"],
        is_alive=node["Alive"],
        resources={name: float(amount) for name, amount in node["Resources"].items()},
        labels=dict(node.get("Labels") or {}),
    )


def _bundles(table: dict[str, Any]) -> list[Bundle]:
    found = []
    for group_id, group in table.items():
        if group["state"] not in _HELD_STATES:
            continue
        for index, resources in group["bundles"].items():
            node_id = group["bundles_to_node_id"].get(index)
            if node_id:
                found.append(
                    Bundle(
                        group_id=group_id,
                        name=group["name"],
                        node_id=node_id,
                        resources={name: float(amount) for name, amount in resources.items()},
                    )
                )
    return found


def _stranded(table: dict[str, Any], alive: set[str]) -> list[str]:
    """Return the names of groups that wait for a node to come back which Ray has given up."""
    return [
        group["name"]
        for group in table.values()
        if group["state"] == "RESCHEDULING"
        and not alive.intersection(group["bundles_to_node_id"].values())
    ]


def _uses(node: dict[str, Any]) -> list[WorkerUse]:
    """Ask a raylet which slots its workers use."""
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated import node_manager_pb2, node_manager_pb2_grpc

    address = f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"
    channel = init_grpc_channel(address, options=[("grpc.max_receive_message_length", 2**26)])
    try:
        stub = node_manager_pb2_grpc.NodeManagerServiceStub(channel)
        request = node_manager_pb2.GetNodeStatsRequest(include_memory_info=False)
        stats = stub.GetNodeStats(request, timeout=_STATS_S)
    finally:
        channel.close()
    found = []
    for worker in stats.core_workers_stats:
        slots = {
            name: {slot.slot: slot.allocation for slot in used.resource_slots}
            for name, used in worker.used_resources.items()
        }
        if slots:
            found.append(WorkerUse(node_id=node["NodeID"], slots=slots))
    return found
