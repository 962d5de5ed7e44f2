"""Bodies of twin runs: the journal's own past under two policies."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tercio.api.bodies import Body
from tercio.model.node import NodeSpec
from tercio.model.queue import Policy
from tercio.model.views import View

PolicyText = Annotated[str, Meta(max_length=200_000)]
ChangeText = Annotated[str, Meta(min_length=1, max_length=60)]
NOW = "in force"
"""Name of the policy that the server decides by."""


class TwinArm(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy: a built-in one by name, `in force`, or a policy file's text in `file`."""

    name: Annotated[str, Meta(min_length=1, max_length=60)]
    file: PolicyText | None = None


class TwinRunBody(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Replay what was submitted in the last days; the first arm is the baseline.

    Attributes:
        add: devices more, such as `16xH100`: every policy is tried with them too.
        drain: nodes, racks or other labels less, likewise.
        faults: how often nodes fail in all arms, such as `mean=60d,repair=20h`; empty for never.
    """

    arms: Annotated[tuple[TwinArm, ...], Meta(min_length=1, max_length=3)]
    days: Annotated[float, Meta(gt=0, le=400)] | None = None
    add: Annotated[tuple[ChangeText, ...], Meta(max_length=4)] = ()
    drain: Annotated[tuple[ChangeText, ...], Meta(max_length=4)] = ()
    faults: Annotated[str, Meta(max_length=300)] = ""


class TwinQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """What goes to the child: the body, and what the server knows."""

    body: TwinRunBody
    journal: str
    nodes: tuple[NodeSpec, ...]
    policy: Policy
    since_s: float | None = None


class TwinJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job in one arm; instants None where not reached."""

    id: str
    queue: str
    devices: float
    submit_s: float
    start_s: float | None
    end_s: float | None
    state: str


class TwinCourse(msgspec.Struct, frozen=True, kw_only=True):
    """One arm over time: what held from each instant on."""

    name: str
    at_s: tuple[float, ...]
    used: tuple[float, ...]
    waiting: tuple[float, ...]
    devices: int
    jobs: tuple[TwinJob, ...]


class TwinAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a run. `rows` are figures, a value and a difference for each arm."""

    rows: tuple[dict[str, Any], ...]
    courses: tuple[TwinCourse, ...]
    jobs: int
    notes: tuple[str, ...]


class TwinRunView(View, frozen=True, kw_only=True):
    """One run of the twin.

    Attributes:
        state: `running`, `done` or `failed`.
        arms: every policy on the nodes there are, then on the changed ones.
        add, drain, faults: what was asked beside the policies.
        done, whole: replays that are done, and all of them.
        answer: when it is done.
        error, hint: when it failed.
    """

    kind: str = "TwinRun"
    run: str
    state: str
    asked_s: float
    by: str
    arms: tuple[str, ...]
    days: float | None = None
    add: tuple[str, ...] = ()
    drain: tuple[str, ...] = ()
    faults: str = ""
    done: int = 0
    whole: int = 0
    answer: msgspec.Raw | None = None
    error: str = ""
    hint: str | None = None


class TwinRunList(View, frozen=True, kw_only=True):
    """The last runs, newest first, without their answers; and the policies that can be tried."""

    kind: str = "TwinRunList"
    rows: tuple[TwinRunView, ...]
    policies: tuple[str, ...]
