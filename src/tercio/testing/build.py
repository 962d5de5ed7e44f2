"""Short ways to write nodes and jobs, in the notation of the scenarios.

>>> [n.spec.name for n in cluster("1r x 2n x 8g")]
['n1', 'n2']
>>> gang("4x8", limit_s=60).groups[0].tasks
4
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tercio.model.ids import NodeName, SiteName
from tercio.model.job import CheckpointSpec, JobSpec, NodeFilter, RetrySpec, TaskGroup, TimeSpec
from tercio.model.node import DeviceSpec, Links, MigSpec, Node, NodeSpec, NodeState
from tercio.model.resources import NO_DEVICE, DeviceRequest, Request
from tercio.model.snapshot import Cheaper
from tercio.model.topology import TopologyRequest
from tercio.sched.mig import can_be_cut

GIB = 1024**3


def node(
    name: str,
    devices: int = 8,
    *,
    device_type: str = "H100",
    card_gb: int = 80,
    memory_mib: int = 81_559,
    cpus: int = 1024,
    memory_gib: int = 8192,
    slots: int | None = None,
    links: Links = Links.NVSWITCH,
    islands: int = 1,
    site: str = "local",
    labels: Mapping[str, str] | None = None,
    state: NodeState = NodeState.READY,
) -> Node:
    """A node with plenty of cores and memory unless said otherwise."""
    return Node(
        spec=NodeSpec(
            name=NodeName(name),
            site=SiteName(site),
            devices=tuple(
                DeviceSpec(
                    type=device_type,
                    index=at,
                    uuid=f"{name}-{at}",
                    card_bytes=card_gb * 10**9,
                    memory_bytes=memory_mib * 1024**2,
                    island=at * islands // max(devices, 1),
                    mig=MigSpec() if can_be_cut(device_type) else None,
                )
                for at in range(devices)
            ),
            cpus_milli=cpus * 1000,
            memory_bytes=memory_gib * GIB,
            slots=slots,
            links=links,
            pool=device_type.lower(),
            labels=dict(labels or {}),
        ),
        state=state,
    )


def cluster(text: str, *, device_type: str = "H100", first: int = 1, slots: int | None = None,
            cpus: int = 1024, islands: int = 1, prefix: str = "n") -> list[Node]:  # fmt: skip
    """Read `2r x 4n x 8g`: racks (label `rack`) of nodes of devices; racks may be left out."""
    parts = {m[2]: int(m[1]) for m in re.finditer(r"(\d+)\s*([rng])", text)}
    racks, nodes, devices = parts.get("r", 0), parts["n"], parts.get("g", 0)
    found = []
    for at in range(max(racks, 1) * nodes):
        labels = {"rack": f"r{at // nodes + 1}"} if racks else {}
        found.append(
            node(
                f"{prefix}{first + at}",
                devices,
                device_type=device_type,
                labels=labels,
                slots=slots,
                cpus=cpus,
                islands=islands,
            )
        )
    return found


def group(
    size: str,
    *,
    name: str = "",
    device_type: str | None = "H100",
    tasks_max: int | None = None,
    topology: TopologyRequest | None = None,
    exclusive: bool = False,
    cpus: float | None = 1,
    memory_bytes: int | None = 0,
) -> TaskGroup:
    """Read `4x8` (tasks x devices), `1x0.6` (a share), `1x2000MiB` (a memory share)."""
    tasks, _, each = size.partition("x")
    if each.endswith("MiB"):
        request = DeviceRequest(type=device_type, share_memory_bytes=int(each[:-3]) * 1024**2)
    elif float(each) == 0:
        request = NO_DEVICE
    elif float(each) < 1:
        request = DeviceRequest(type=device_type, share_milli=round(float(each) * 1000))
    else:
        request = DeviceRequest(type=device_type, count=int(each))
    return TaskGroup(
        name=name,
        tasks=int(tasks),
        tasks_max=tasks_max,
        per_task=Request(
            devices=(request,),
            cpus_milli=None if cpus is None else round(cpus * 1000),
            memory_bytes=memory_bytes,
        ),
        topology=topology,
        exclusive=exclusive,
    )


def cheap_from(from_s: float) -> Cheaper:
    """An hour at which power costs a third, for a flexible job."""
    return Cheaper(
        from_s=from_s, latest_s=from_s + 60.0, rate=0.1, rate_at_once=0.3, unit="USD/kWh"
    )


def gang(
    size: str,
    *,
    name: str = "job",
    device_type: str | None = "H100",
    limit_s: float | None = None,
    expected_s: float | None = None,
    deadline_s: float | None = None,
    same: str | None = None,
    prefer: str | None = None,
    spread: str | None = None,
    tasks_max: int | None = None,
    match: str | None = None,
    exclude: tuple[str, ...] = (),
    exclusive: bool = False,
    sites: tuple[str, ...] = (),
    cpus: float | None = 1,
    speed: Mapping[str, float] | None = None,
) -> JobSpec:
    """A job of one group, in the scenarios' notation; no grace, no back-off."""
    topology = None
    if same or prefer or spread:
        topology = TopologyRequest(same=same, prefer=prefer, spread=spread)
    nodes = NodeFilter(match=match, exclude=exclude) if match or exclude else None
    return JobSpec(
        name=name,
        groups=(
            group(
                size, device_type=device_type, tasks_max=tasks_max, topology=topology,
                exclusive=exclusive, cpus=cpus,
            ),
        ),
        nodes=nodes,
        time=TimeSpec(limit_s=limit_s, expected_s=expected_s, deadline_s=deadline_s),
        checkpoint=CheckpointSpec(path="/ckpt", grace_s=0.0),
        retry=RetrySpec(backoff_s=0.0),
        sites=sites,
        speed=dict(speed or {}),
    )  # fmt: skip
