"""What `top` shows, as plain data: totals, device bars by pool, queues, jobs that run and wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tercio.cli import human
from tercio.client import Client
from tercio.errors import UserError
from tercio.model.health_views import LiveNode
from tercio.model.views import JobView, NodeView, QueueView, ServerView

ACTIVE = ("starting", "running", "suspended", "stopping")


class PoolLine(NamedTuple):
    """Devices of one pool."""

    name: str
    used: float
    total: float
    nodes: int
    nodes_out: int


class Frame(NamedTuple):
    """Everything one picture needs, fetched together."""

    server: ServerView
    pools: tuple[PoolLine, ...]
    queues: tuple[QueueView, ...]
    running: tuple[JobView, ...]
    waiting: tuple[JobView, ...]
    live: tuple[LiveNode, ...] = ()


def fetch_frame(client: Client) -> Frame:
    """Ask the server for one picture."""
    jobs = tuple(client.every_job())
    return Frame(
        server=client.server(),
        pools=pool_lines(tuple(client.every_node())),
        queues=tuple(client.every_queue()),
        running=tuple(job for job in jobs if job.state in ACTIVE),
        waiting=tuple(job for job in jobs if job.state not in ACTIVE),
        live=_live(client),
    )


def _live(client: Client) -> tuple[LiveNode, ...]:
    try:
        return tuple(client.every_live())
    except UserError as error:
        if error.code != "not_found":
            raise
        return ()  # a server of an older version


def pool_lines(nodes: Sequence[NodeView]) -> tuple[PoolLine, ...]:
    """Sum devices by pool, in order of first node."""
    pools: dict[str, list[NodeView]] = {}
    for node in nodes:
        pools.setdefault(node.pool or node.site, []).append(node)
    return tuple(
        PoolLine(
            name=name,
            used=sum(sum(n.total.values()) - sum(n.free.values()) for n in members),
            total=sum(sum(n.total.values()) for n in members),
            nodes=len(members),
            nodes_out=sum(1 for n in members if n.state != "ready"),
        )
        for name, members in pools.items()
    )


def title(frame: Frame, now_s: float) -> str:
    """Return the first line: what the server is and how busy."""
    server = frame.server
    return (
        f"tercio {server.version}  up {human.span(now_s - server.started_s)}  "
        f"{human.quantity(server.nodes, 'node')}  {len(frame.running)} active  "
        f"{len(frame.waiting)} waiting  seq {server.seq}"
    )


def pool_text(pool: PoolLine) -> str:
    """Return one bar of devices, with its numbers beside it."""
    ratio = pool.used / pool.total if pool.total else 0.0
    out = f"  {pool.nodes_out} of {pool.nodes} nodes out" if pool.nodes_out else ""
    return (
        f"{pool.name:<12} {human.bar(ratio, width=30)} "
        f"{human.number(pool.used)}/{human.number(pool.total)} {round(ratio * 100)}%{out}"
    )
