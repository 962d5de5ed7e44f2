"""What simulated tasks and nodes do, as data: fully deterministic, no random choices."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from enum import StrEnum

import msgspec

from tercio.errors import UserError
from tercio.model.effects import LaunchTask, ReconfigureDevice

BEHAVIOUR_ENV = "TERCIO_SIM"
"""A job may set its own behaviour: `env: {TERCIO_SIM: '{"exit_code": 3}'}`."""

NAME_ENV = "TERCIO_JOB_NAME"


class Steps(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a task marks its steps.

    Attributes:
        every_s: from step to step, of all tasks alike.
        own_s: own time in a step.
        slow_task: the one that takes `slow_ratio` times as long, from `slow_from_step` on.
    """

    every_s: float
    own_s: float
    slow_task: int | None = None
    slow_ratio: float = 1.2
    slow_from_step: int = 1

    def __post_init__(self) -> None:
        if not self.every_s > 0:
            raise ValueError("steps.every_s must be more than 0")


class Behaviour(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one task behaves.

    Attributes:
        duration_s: run time; None takes the order's, else the engine's default.
        exit_code: of a task that ends by itself; with `signal` set, None is reported.
        signal: that ends it, or None.
        is_lost: it ends by a fault of the node.
        message: of its end.
        launch_s: time to start.
        launch_error: it cannot start, for this reason; `is_retryable` goes with it.
        stop_s: time it takes to end after a stop signal, cut by the grace.
        ignores_stop: it runs on until the grace is over.
        lines: printed at its start, before the synthetic ones.
        line_every_s: interval of synthetic lines; 0 prints none.
        steps: marks of its progress; None marks nothing.
    """

    duration_s: float | None = None
    exit_code: int = 0
    signal: int | None = None
    is_lost: bool = False
    message: str = ""
    launch_s: float = 0.0
    launch_error: str = ""
    is_retryable: bool = True
    stop_s: float = 0.0
    ignores_stop: bool = False
    lines: tuple[str, ...] = ()
    line_every_s: float = 5.0
    steps: Steps | None = None


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """Which tasks behave so; a None matches all.

    Attributes:
        job: pattern (`train-*`) of the job's name or id.
        attempt, task: index.
        node: pattern of the node's name.
    """

    behaviour: Behaviour
    job: str | None = None
    attempt: int | None = None
    task: int | None = None
    node: str | None = None

    def matches(self, order: LaunchTask) -> bool:
        """Whether the rule is for this order."""
        names = (order.job_id, order.env.get(NAME_ENV, ""))
        return (
            (self.job is None or any(fnmatch.fnmatchcase(name, self.job) for name in names))
            and self.attempt in (None, order.attempt)
            and self.task in (None, order.task)
            and (self.node is None or fnmatch.fnmatchcase(order.node, self.node))
        )


class NodeFaultKind(StrEnum):
    """What happens to a node."""

    LOST = "lost"
    RETURNED = "returned"
    FENCED = "fenced"
    REMOVED = "removed"


class NodeFault(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happens to a node, `after_s` after the engine was opened."""

    node: str
    kind: NodeFaultKind
    after_s: float
    reason: str = "scripted"


class CutFault(msgspec.Struct, frozen=True, kw_only=True):
    """Trouble with cutting devices into slices.

    Attributes:
        node: pattern of the node's name.
        index: of the device, or None for any.
        message: why it fails; empty for one that only takes its time.
        after_s: how long it takes.
        is_retryable: whether it may go well later.
        times: how often it happens.
    """

    node: str
    index: int | None = None
    message: str = ""
    after_s: float = 0.0
    is_retryable: bool = True
    times: int = 1

    def matches(self, order: ReconfigureDevice) -> bool:
        """Whether this order is in trouble."""
        is_here = fnmatch.fnmatchcase(order.node, self.node)
        return is_here and self.index in (None, order.index)


def wish_of(env: Mapping[str, str]) -> Behaviour | None:
    """Return how a job wishes to behave; None for no wish.

    Raises UserError for a wish that cannot be read.
    """
    wish = env.get(BEHAVIOUR_ENV)
    if not wish:
        return None
    try:
        return msgspec.json.decode(wish, type=Behaviour)
    except msgspec.DecodeError as error:
        raise UserError(f"{BEHAVIOUR_ENV}: {error}", field=f"env.{BEHAVIOUR_ENV}") from error


class SimScript(msgspec.Struct, frozen=True, kw_only=True):
    """Rules in order, first match wins, and what happens to nodes."""

    rules: tuple[Rule, ...] = ()
    node_faults: tuple[NodeFault, ...] = ()
    cut_faults: tuple[CutFault, ...] = ()

    def behaviour_of(self, order: LaunchTask) -> Behaviour:
        """Return how the task behaves: its own wish, else a rule, else the default.

        Raises UserError for a wish that cannot be read.
        """
        wish = wish_of(order.env)
        if wish is not None:
            return wish
        for rule in self.rules:
            if rule.matches(order):
                return rule.behaviour
        return Behaviour()
