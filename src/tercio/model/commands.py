"""Commands: what people ask for. `core.commands` turns an allowed one into events."""

from __future__ import annotations

from typing import Literal

import msgspec

from tercio.model.grid import GridSeries
from tercio.model.health import HealthSettings
from tercio.model.identity import Token
from tercio.model.ids import JobId, NodeName
from tercio.model.job import JobSpec
from tercio.model.queue import Policy
from tercio.model.reservation import Reservation


class Command(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """Root of the commands; never built itself."""


class SubmitJob(Command, frozen=True, kw_only=True, omit_defaults=True):
    """Accept one job. The same `submit_key` from the same user returns the first job again."""

    spec: JobSpec
    submit_key: str | None = None
    is_held: bool = False


class JobCommand(Command, frozen=True, kw_only=True, omit_defaults=True):
    """Root of the commands on one job."""

    job_id: JobId


class HoldJob(JobCommand, frozen=True, kw_only=True, omit_defaults=True):
    """Keep a waiting job from starting."""


class ReleaseJob(JobCommand, frozen=True, kw_only=True, omit_defaults=True):
    """Let a held job start again."""


class CancelJob(JobCommand, frozen=True, kw_only=True, omit_defaults=True):
    """Stop a job for good."""

    reason: str = ""


class RequeueJob(JobCommand, frozen=True, kw_only=True, omit_defaults=True):
    """Stop a job and run it again from the queue; also runs a finished job again."""


class SuspendJob(JobCommand, frozen=True, kw_only=True, omit_defaults=True):
    """Pause a running job; it keeps what it holds."""


class ResumeJob(JobCommand, frozen=True, kw_only=True, omit_defaults=True):
    """Let a paused job go on."""


class CordonNode(Command, frozen=True, kw_only=True, omit_defaults=True):
    """No new work on a node."""

    node: NodeName
    reason: str = ""


class UncordonNode(Command, frozen=True, kw_only=True, omit_defaults=True):
    """Lift the asker's cordon; an admin lifts any cordon set by a person."""

    node: NodeName


class DrainNode(Command, frozen=True, kw_only=True, omit_defaults=True):
    """Empty a node: cordon it, stop its jobs with grace and requeue them."""

    node: NodeName
    reason: str = ""


class MoveNode(Command, frozen=True, kw_only=True, omit_defaults=True):
    """Move the health of a node: `to` is `quarantine`, `probation`, `return` or `retire`."""

    node: NodeName
    to: Literal["quarantine", "probation", "return", "retire"]
    reason: str = ""


class SetHealthPolicy(Command, frozen=True, kw_only=True, omit_defaults=True):
    """Change settings of the health policy; those not named stay."""

    settings: HealthSettings
    if_version: int | None = None


class ResetBreaker(Command, frozen=True, kw_only=True, omit_defaults=True):
    """Let automation act again after the breaker stopped it."""

    reason: str = ""


class SetPolicy(Command, frozen=True, kw_only=True, omit_defaults=True):
    """Put a new policy in force. `if_version` refuses an edit of a stale version."""

    policy: Policy
    if_version: int | None = None


class SendPrices(Command, frozen=True, kw_only=True, omit_defaults=True):
    """Say what power costs from the first hour of a series on; an empty one forgets all."""

    series: GridSeries


class AddReservation(Command, frozen=True, kw_only=True, omit_defaults=True):
    """Keep capacity for a queue or a user."""

    reservation: Reservation


class RemoveReservation(Command, frozen=True, kw_only=True, omit_defaults=True):
    """End a reservation."""

    name: str


class CreateToken(Command, frozen=True, kw_only=True, omit_defaults=True):
    """Accept a token from now on."""

    token: Token


class RevokeToken(Command, frozen=True, kw_only=True, omit_defaults=True):
    """Refuse a token from now on."""

    token_id: str


AnyCommand = (
    SubmitJob
    | HoldJob
    | ReleaseJob
    | CancelJob
    | RequeueJob
    | SuspendJob
    | ResumeJob
    | CordonNode
    | UncordonNode
    | DrainNode
    | MoveNode
    | SetHealthPolicy
    | ResetBreaker
    | SetPolicy
    | SendPrices
    | AddReservation
    | RemoveReservation
    | CreateToken
    | RevokeToken
)
