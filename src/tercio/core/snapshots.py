"""The state in a file that may leave the server: what the twin needs, and nothing secret.

Kept are the policy, nodes, reservations, promises, the jobs that have not ended with their times,
and what the scheduler learned. Left out are commands, environments, files, addresses that are
called, tokens, messages of tasks, past use by user, and jobs that have ended.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tercio.core.image import StateImage
from tercio.core.ledger import Ledger
from tercio.core.records import ArrayProgress, Job, Task
from tercio.errors import UserError
from tercio.model.effects import AnyEffect, LaunchTask, Notify, RepairNode
from tercio.model.health import HealthState
from tercio.model.job import TERMINAL_JOB_STATES, JobSpec

KIND: Final = "Snapshot"
SCHEMA: Final = "tercio/v1"


class SavedState(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot file.

    Attributes:
        saved_s: when it was taken, seconds since the epoch.
        version: of the program that took it.
        state: see the module's description.
    """

    schema: str = SCHEMA
    kind: str = KIND
    saved_s: float
    version: str
    state: StateImage


def save_state(image: bytes, *, saved_s: float, version: str) -> bytes:
    """Return the snapshot file of a state's image, as JSON."""
    kept = msgspec.msgpack.decode(image, type=StateImage)
    saved = SavedState(saved_s=saved_s, version=version, state=without_secrets(kept))
    return msgspec.json.encode(saved)


def load_state(text: bytes, source: str) -> SavedState:
    """Read a snapshot file.

    Raises:
        UserError: it is none, or of another version.
    """
    try:
        saved = msgspec.json.decode(text, type=SavedState)
    except msgspec.MsgspecError as error:
        raise UserError(
            f"{source} is no snapshot: {error}",
            field="from",
            hint="make one with 'tercio snapshot save FILE'",
        ) from error
    if (saved.kind, saved.schema) != (KIND, SCHEMA):
        raise UserError(
            f"{source} is a {saved.kind} of {saved.schema}, not a {KIND} of {SCHEMA}", field="from"
        )
    return saved


def without_secrets(image: StateImage) -> StateImage:
    """Return the state without what is nobody else's business; see the module's description."""
    jobs = [_job(job) for job in image.jobs if job.state not in TERMINAL_JOB_STATES]
    kept = {job.id for job in jobs}
    effects = [_effect(e) for e in image.open_effects if not isinstance(e, Notify)]
    return msgspec.structs.replace(
        image,
        jobs=jobs,
        tokens=[],
        ledger=_ledger(image.ledger),
        open_effects=effects,
        held_launches=[_launch(order) for order in image.held_launches if order.job_id in kept],
        health=HealthState(),
    )


def _spec(spec: JobSpec) -> JobSpec:
    return msgspec.structs.replace(
        spec, run="", setup=None, env={}, secrets=(), workdir=None, outputs=None, image=None,
        notify=(), labels={}, model=None,
    )  # fmt: skip


def _job(job: Job) -> Job:
    array = job.array
    if array is not None:
        array = msgspec.structs.replace(array, element=_spec(array.element))
        assert isinstance(array, ArrayProgress)
    return msgspec.structs.replace(
        job, spec=_spec(job.spec), array=array, submit_key=None, message="", waited_message="",
        past=(), tasks=[_task(task) for task in job.tasks],
        missing=tuple(msgspec.structs.replace(lost, message="") for lost in job.missing),
    )  # fmt: skip


def _task(task: Task) -> Task:
    return msgspec.structs.replace(task, message="", marks=None, measured=None)


def _ledger(ledger: Ledger) -> Ledger:
    return msgspec.structs.replace(ledger, usage_ms={})


def _launch(order: LaunchTask) -> LaunchTask:
    return msgspec.structs.replace(
        order, command="", setup=None, env={}, files={}, secrets=(), workdir=None, outputs=None,
        image=None,
    )  # fmt: skip


def _effect(effect: AnyEffect) -> AnyEffect:
    match effect:
        case LaunchTask():
            return _launch(effect)
        case RepairNode():
            return msgspec.structs.replace(effect, reason="", serial="")
        case _:
            return effect
