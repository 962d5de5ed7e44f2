"""The health policy: when automation may act on a node, and how far."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from tercio.errors import UserError
from tercio.health.finding import PASSIVE_ACTIONS, Action
from tercio.health.history import DAY_S, REPEAT_RULES, RepeatRule, WaveRule
from tercio.health.lemon import LemonRule

# nvidia-resiliency-ext: three restarts of one cause without progress stop the job.
HANG_RESTARTS = 3


class Mode(StrEnum):
    """Shadow decides and says so; act also does it."""

    SHADOW = "shadow"
    ACT = "act"


class Power(StrEnum):
    """What is done about power budgets: devices are left alone, a plan is shown, it is carried out.

    Budgets hold what may start, whatever this says.
    """

    OFF = "off"
    SHADOW = "shadow"
    ACT = "act"


class Work(StrEnum):
    """What runs on a node on trial: nothing, single tasks that may be evicted, or anything."""

    NONE = "none"
    SMALL = "small"
    ALL = "all"


class Suspects(StrEnum):
    """What is done about a node that holds a job up: it is told of, or taken out."""

    OBSERVE = "observe"
    ACT = "act"


class Repairs(StrEnum):
    """Who mends a node: a person, or the site's repair command."""

    PERSON = "person"
    COMMAND = "command"


class HeldBy(StrEnum):
    """Why a decision is not carried out."""

    SHADOW = "shadow"
    BREAKER = "breaker"
    DRAIN_BUDGET = "drain_budget"
    SAME_JOB = "same_job"
    BUSY = "busy"
    LOOP = "loop"
    FOREIGN_CORDON = "foreign_cordon"
    MAINTENANCE = "maintenance"
    PERSON = "person"


# The rungs, from gentle to hard; a rung holds the actions that cost a node about the same.
LADDER: tuple[tuple[Action, ...], ...] = (
    (Action.RESTART_APP,),
    (
        Action.RESET_GPU,
        Action.RESET_GPU_WHEN_IDLE,
        Action.DRAIN_AND_RESET,
        Action.RESET_ALL_GPUS_AND_SWITCHES,
    ),
    (Action.REBOOT_NODE, Action.RESTART_VM),
    (Action.INSPECT_HW,),
)
# A person does this one: the node waits in quarantine.
MANUAL_ACTIONS = frozenset({Action.INSPECT_HW})


class HealthPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of automation. The defaults suit a first week in shadow mode.

    Attributes:
        repairs: who mends a quarantined node; the command is part of the server's configuration.
        webhook: address that is told of every quarantine; empty for none.
        drain_budget_ratio, drain_budget_min: most nodes that health keeps out at once, the larger
            of the two.
        breaker_ratio, breaker_min, breaker_window_s: when more nodes than this (the larger of
            the two) need a repair within the window, all automation stops until a person resets
            the breaker.
        loop_count, loop_window_s: repairs of one node after which a person must look.
        rung_tries, rung_window_s: repairs of one cause on one rung before the next rung.
        repair_timeout_s: a repair that has not reported by then has failed.
        probation_s: trial time after a repair, in which the same fault counts double.
        hang_ratio: a job that marks its steps hangs when it was silent for so many times its
            longest silence in the same phase; 0 looks for no hangs.
        hang_min_s: no job hangs that was silent for less.
        hang_restarts: restarts of one job for hangs in a row; after one more it has failed.
        spin_wait_s: a job that marks nothing is told of when all its devices have waited in a
            collective for so long; it is never stopped for that. 0 looks for no such jobs.
        straggler_ratio: a task is slow from so many times the median task's own time per step;
            0 looks for no slow tasks.
        idle_limit_s: a job all of whose devices were idle for so long is warned; 0 looks for none.
        idle_grace_s: how long after the warning it is stopped and queued again.
        suspects: whether a node that holds a job up is taken out, so that the job goes on without
            it: one that a hang waits for, and one with a slow task and a cause that its devices
            name, once the loss is more than a restart costs.
        probation_work, spare_work: what runs on a node on probation, and on a spare that waits.
        power: whether power limits of devices are changed to keep power budgets.
        power_floor_ratio: no device is limited below this share of its default limit.
        power_slowdown_ratio: how much longer the steps of a job may take to save energy; limits
            are tried out on running jobs and remembered by job class. 0 tries none.
        suspect_quiet_s: a suspect node without a new fault for so long is healthy again.
    """

    mode: Mode = Mode.SHADOW
    repairs: Repairs = Repairs.PERSON
    webhook: str = ""
    drain_budget_ratio: float = 0.02
    drain_budget_min: int = 1
    breaker_ratio: float = 0.10
    breaker_min: int = 2
    breaker_window_s: float = 600.0
    loop_count: int = 5
    loop_window_s: float = 7 * DAY_S
    rung_tries: int = 2
    rung_window_s: float = 30 * DAY_S
    repair_timeout_s: float = 1800.0
    probation_s: float = DAY_S
    suspect_quiet_s: float = DAY_S
    hang_ratio: float = 5.0
    hang_min_s: float = 300.0
    hang_restarts: int = HANG_RESTARTS
    spin_wait_s: float = 600.0
    straggler_ratio: float = 1.05
    idle_limit_s: float = 0.0
    idle_grace_s: float = 600.0
    suspects: Suspects = Suspects.OBSERVE
    probation_work: Work = Work.SMALL
    spare_work: Work = Work.NONE
    power: Power = Power.OFF
    power_floor_ratio: float = 0.6
    power_slowdown_ratio: float = 0.0
    repeat_rules: tuple[RepeatRule, ...] = REPEAT_RULES
    wave: WaveRule = WaveRule()
    lemon: LemonRule = LemonRule()

    def __post_init__(self) -> None:
        """Refuse limits that would let automation empty a cluster.

        Raises:
            UserError: a ratio outside 0 to 1, or a negative count or span.
        """
        ratios = (
            "drain_budget_ratio",
            "breaker_ratio",
            "power_floor_ratio",
            "power_slowdown_ratio",
        )
        for field in ratios:
            value = getattr(self, field)
            if not 0 <= value <= 1:
                raise UserError(f"{field} is {value}", field=field, hint="give a share from 0 to 1")
        counts = (
            "drain_budget_min", "breaker_min", "loop_count", "rung_tries", "hang_ratio",
            "hang_min_s", "hang_restarts", "spin_wait_s",
            "idle_limit_s", "idle_grace_s",
        )  # fmt: skip
        for field in counts:
            value = getattr(self, field)
            if value < 0:
                raise UserError(f"{field} is {value}", field=field, hint="give 0 or more")
        if self.straggler_ratio and self.straggler_ratio < 1.01:
            raise UserError(
                f"straggler_ratio is {self.straggler_ratio}",
                field="straggler_ratio",
                hint="give 1.01 or more, or 0 to look for no slow tasks",
            )
        if self.spare_work is Work.ALL or self.probation_work is Work.NONE:
            field = "spare_work" if self.spare_work is Work.ALL else "probation_work"
            takes = "none or small" if field == "spare_work" else "small or all"
            raise UserError(f"{field} is not {takes}", field=field, hint=f"give {takes}")
        if self.rung_tries < 1:
            raise UserError("rung_tries is 0", field="rung_tries", hint="give 1 or more")

    def drain_budget(self, node_count: int) -> int:
        """Return how many nodes health may keep out of a cluster of this size."""
        return max(self.drain_budget_min, int(self.drain_budget_ratio * node_count))

    def breaker_count(self, node_count: int) -> int:
        """Return how many nodes may need a repair within the window before all stops."""
        return max(self.breaker_min, int(self.breaker_ratio * node_count))


class Repair(msgspec.Struct, frozen=True, kw_only=True):
    """One repair that was started on a node."""

    at_s: float
    action: Action
    cause: tuple[str, str, str]
    succeeded: bool | None = None


def rung_of(action: Action) -> int | None:
    """Return the rung of an action, or None for one that touches no node."""
    if action in PASSIVE_ACTIONS:
        return None
    return next(i for i, rung in enumerate(LADDER) if action in rung)


def escalate(
    wanted: Action,
    repairs: Sequence[Repair],
    *,
    cause: tuple[str, str, str],
    now_s: float,
    policy: HealthPolicy,
) -> tuple[Action, str]:
    """Return the action to take for a cause, given what was tried before, and why.

    Each rung is tried at most `rung_tries` times for one cause within `rung_window_s`; then the
    next one is due. The last rung is a person.
    """
    rung = rung_of(wanted)
    if rung is None:
        return wanted, "no node action"
    action, why = wanted, "first measure"
    while rung < len(LADDER) - 1:
        tried = [
            r
            for r in repairs
            if r.cause == cause
            and r.action in LADDER[rung]
            and now_s - r.at_s <= policy.rung_window_s
        ]
        if len(tried) < policy.rung_tries:
            break
        why = f"{action} was tried {len(tried)} times in {policy.rung_window_s / DAY_S:g} days"
        rung += 1
        action = LADDER[rung][0]
    return action, why
