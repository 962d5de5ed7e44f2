"""Pure decisions: `schedule(snapshot, policy, now_s, seed) -> Plan`."""

from tercio.sched.plan import Eviction, Plan, Start

__all__ = ["Eviction", "Plan", "Start"]
