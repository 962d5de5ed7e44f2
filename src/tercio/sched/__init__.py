"""Pure decisions: `schedule(snapshot, policy, now_s, seed) -> Plan`."""

from tercio.sched.cycle import schedule
from tercio.sched.memory import Memory
from tercio.sched.plan import Eviction, Plan, Start

__all__ = ["Eviction", "Memory", "Plan", "Start", "schedule"]
