"""From a submit body to jobs: parse, apply overrides, check secrets and working directory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from tercio.api.bodies import SubmitBody
from tercio.api.context import ApiContext
from tercio.errors import UserError
from tercio.formats.files import read_any
from tercio.formats.native import JobFile, read_job_object
from tercio.model.commands import SubmitJob
from tercio.model.job import JobSpec
from tercio.model.queue import Policy

FILE_BYTES_MAX: Final = 1024 * 1024
KEY_LENGTH_MAX: Final = 200
SECRET_BYTES_MAX: Final = 64 * 1024


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of one body, with the values of their secrets."""

    specs: tuple[JobSpec, ...]
    warnings: tuple[str, ...]
    secrets: dict[str, str]
    is_held: bool


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What reading a body needs to know of the server.

    Attributes:
        policy: checks queue names and topology levels.
        partitions: device type by Slurm partition, for batch scripts.
        now_s: seconds since the epoch, for times that count from now.
    """

    policy: Policy
    partitions: dict[str, str] = {}
    now_s: float | None = None


def reading_of(context: ApiContext) -> Reading:
    """Return what reading a body needs, as it is now."""
    return Reading(
        policy=context.cluster.policy,
        partitions=context.config.convert.partitions,
        now_s=context.now(),
    )


def read_submits(
    bodies: Sequence[SubmitBody], reading: Reading, *, is_batch: bool
) -> list[Accepted]:
    """Parse the bodies; the first that is wrong is refused with its place.

    Raises:
        UserError: naming the field, the value and a fix.
    """
    accepted = []
    for position, body in enumerate(bodies):
        try:
            accepted.append(_read_submit(body, reading))
        except UserError as error:
            if not is_batch:
                raise
            place = f"jobs[{position}]"
            field = f"{place}.{error.field}" if error.field else place
            raise UserError(
                f"{place}: {error.message}", code=error.code, hint=error.hint, field=field
            ) from None
    return accepted


def _read_submit(body: SubmitBody, reading: Reading) -> Accepted:
    if (body.file is None) == (body.job is None):
        raise UserError(
            "a submit has either `file`, the text of a job file, or `job`, the same as an object",
            field="file",
            hint='send {"file": "..."} or {"job": {...}}',
        )
    found = _parse(body, reading)
    specs = tuple(_with_workdir(spec, body.workdir) for spec in found.specs)
    _check_secrets(specs, body.secrets)
    return Accepted(
        specs=specs,
        warnings=found.warnings,
        secrets=body.secrets,
        is_held=body.hold or found.is_held,
    )


def _parse(body: SubmitBody, reading: Reading) -> JobFile:
    if body.job is not None:
        return read_job_object(
            body.job,
            source=body.source or "job",
            policy=reading.policy,
            overrides=body.overrides,
        )
    text = body.file or ""
    if len(text) > FILE_BYTES_MAX:
        raise UserError(
            f"file: {len(text)} characters are more than a job file may have",
            code="too_large",
            field="file",
            hint="put large inputs into the working directory",
        )
    return read_any(
        text,
        source=body.source or "job.yaml",
        policy=reading.policy,
        overrides=body.overrides,
        partitions=reading.partitions,
        now_s=reading.now_s,
    )


def _with_workdir(spec: JobSpec, snapshot: str | None) -> JobSpec:
    """Return the spec with the uploaded snapshot in the place of the user's own directory."""
    if spec.workdir is None or spec.workdir.startswith("/"):
        return spec
    if snapshot is None:
        raise UserError(
            f"workdir: {spec.workdir!r} is a directory of the submitter's machine, and no "
            "snapshot of it was sent",
            field="workdir",
            hint="`tercio submit` sends one; else POST it to /v1/workdirs and send its id, or "
            "write an absolute path on the nodes",
        )
    return msgspec.structs.replace(spec, workdir=snapshot)


def _check_secrets(specs: Sequence[JobSpec], given: dict[str, str]) -> None:
    wanted = dict.fromkeys(name for spec in specs for name in spec.secrets)
    for name in wanted:
        if name not in given:
            raise UserError(
                f"secrets: no value was sent for {name!r}",
                field=f"secrets.{name}",
                hint=f"set {name} in the environment of `tercio submit`",
            )
    for name, value in given.items():
        if name not in wanted:
            raise UserError(
                f"secrets: {name!r} is not among the job's secrets",
                field=f"secrets.{name}",
                hint=f"add it to the job file: secrets: [{name}]",
            )
        if len(value) > SECRET_BYTES_MAX or "\0" in value:
            # The value itself must not be repeated in the message.
            raise UserError(
                f"secrets: the value of {name!r} is too long or holds a NUL character",
                field=f"secrets.{name}",
                hint="a value becomes an environment variable; put larger ones into a file",
            )


def submit_key(header: str | None) -> str | None:
    """Return the idempotency key, checked."""
    if header is None:
        return None
    if not 1 <= len(header) <= KEY_LENGTH_MAX or not header.isprintable():
        raise UserError(
            "Idempotency-Key: must be 1 to 200 printable characters",
            field="Idempotency-Key",
            hint="use a fresh random value for every new submit",
        )
    return header


def to_commands(accepted: Sequence[Accepted], key: str | None) -> list[SubmitJob]:
    """Return the commands, in order; each job of a keyed request has a key of its own."""
    commands: list[SubmitJob] = []
    for each in accepted:
        for spec in each.specs:
            own = None if key is None else f"{key}:{len(commands)}"
            commands.append(SubmitJob(spec=spec, submit_key=own, is_held=each.is_held))
    return commands


def check_workdirs(context: ApiContext, bodies: Sequence[SubmitBody]) -> None:
    """Raise `not_found` for a snapshot that the server does not have."""
    for workdir in dict.fromkeys(body.workdir for body in bodies):
        if workdir is not None:
            context.controller.workdirs.path(workdir)
