"""Settings of one Ray site."""

from __future__ import annotations

import msgspec


class RaySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to reach a Ray cluster and how patient to be with it.

    Attributes:
        address: `HOST:PORT` of the head (the bridge runs on a machine of the cluster), or
            `ray://HOST:PORT` of its client server from anywhere else.
        namespace: Ray namespace of our actors and prefix of our placement groups. One server
            has it for ever, and no other server may have the same.
        node_dir: directory on each node for logs and records; None for one under the temporary
            directory of the user who runs Ray.
        device_type: type of accelerators that Ray does not name.
        poll_s: how often nodes, groups and foreign use are read.
        connect_timeout_s: for the connection to the head.
        agent_timeout_s: for the start of a node's agent.
        call_timeout_s: for one answer of an agent.
        reserve_timeout_s: for a placement group to be made.
        lost_after_s: how long the cluster may be silent before its nodes count as lost.
        log_cap_bytes: most bytes of log kept per task.
    """

    address: str
    namespace: str
    node_dir: str | None = None
    device_type: str = ""
    poll_s: float = 2.0
    connect_timeout_s: float = 30.0
    agent_timeout_s: float = 60.0
    call_timeout_s: float = 30.0
    reserve_timeout_s: float = 10.0
    lost_after_s: float = 120.0
    log_cap_bytes: int = 64 * 1024**2
