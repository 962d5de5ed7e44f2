"""The job file: YAML text, or the same as JSON, to `JobSpec`. See docs/job-file.md.

>>> read_job("run: python train.py", source="jobs/sft.yaml").specs[0].name
'sft'
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from tercio.errors import UserError, did_you_mean
from tercio.formats import groups, model_block, parts
from tercio.formats.cursor import Cursor, Fields
from tercio.formats.document import Json, Node, from_json, read_documents
from tercio.formats.groups import FLAT_KEYS, GroupContext
from tercio.formats.overrides import merge_overrides
from tercio.model.ids import QueuePath
from tercio.model.job import (
    CheckpointSpec,
    Framework,
    Goodput,
    JobSpec,
    Mount,
    Repair,
    RetrySpec,
    TaskGroup,
    TimeSpec,
)
from tercio.model.queue import Policy, walk_queues
from tercio.model.topology import DEFAULT_LEVELS, TopologyRequest

JOB_KEYS: Final = (
    "name", "queue", "user", "priority", "preemptible", "groups", *FLAT_KEYS, "nodes", "time",
    "run", "setup", "framework", "env", "secrets", "workdir", "outputs", "image", "mounts",
    "checkpoint", "retry", "repair", "depends_on", "array", "reservation", "sites", "speed",
    "notify", "labels", "wait_for_capacity", "model",
)  # fmt: skip
NAME: Final = r"^[a-z0-9][a-z0-9-]{0,62}$"
NAME_FORM: Final = "write 1 to 63 of a-z, 0-9 and -, such as llama-sft"
MAX_JOBS: Final = 1000
MAX_SCRIPT: Final = 256 * 1024

_MOVED: Final = {
    "devices": "write it below per_task, as per_task: {devices: H100:8}",
    "gpus": "write it as per_task: {devices: H100:8}",
    "accelerators": "write it as per_task: {devices: H100:8}",
    "cpus": "write it below per_task, as per_task: {cpus: 8}",
    "memory": "write it below per_task, as per_task: {memory: 64GiB}",
    "shm": "write it below per_task, as per_task: {shm: 16GiB}",
    "resources": "write what each task needs as per_task: {devices: H100:8, cpus: 8}",
    "num_nodes": "write the size of the gang as tasks",
    "replicas": "write the size of the gang as tasks",
    "command": "write the command of each task as run",
    "cmd": "write the command of each task as run",
    "commands": "write the commands of each task as run: |",
    "script": "write the command of each task as run",
    "envs": "did you mean 'env'?",
    "environment": "did you mean 'env'?",
    "limit": "write it as time: {limit: 8h}",
    "walltime": "write it as time: {limit: 8h}",
    "timeout": "write it as time: {limit: 8h}",
    "max_duration": "write it as time: {limit: 8h}",
    "requeue": "write it as retry: {on: [node_failed, preempted]}",
    "dependency": "write it as depends_on: [{job: job-00001, when: ok}]",
    "site": "write it as sites: [local]",
    "partition": "write the queue, or nodes: {match: \"pool == 'a'\"}",
}


class JobFile(msgspec.Struct, frozen=True, kw_only=True):
    """What a file holds: one job or more, and what its user should know about them."""

    specs: tuple[JobSpec, ...]
    warnings: tuple[str, ...] = ()
    is_held: bool = False


class _Context(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    policy: Policy | None
    group: GroupContext


def read_job(
    text: str,
    *,
    source: str,
    policy: Policy | None = None,
    overrides: Mapping[str, Json] | None = None,
    types: tuple[str, ...] = (),
) -> JobFile:
    """Read a job file; several YAML documents are several jobs.

    Args:
        text: the file.
        source: its name, for messages and for the default name of the job.
        policy: checks queue names and topology levels, where given.
        overrides: see `formats.overrides`; they go into every document.
        types: device types of the cluster beside those of the packaged table.

    Raises:
        UserError: naming line, field, value and fix.
    """
    documents = read_documents(text, source=source)
    if not documents and overrides:
        documents = [Node(value={})]
    if not documents:
        raise UserError(f"{source}: the file is empty", hint="write at least run: COMMAND")
    if len(documents) > MAX_JOBS:
        raise UserError(
            f"{source}: {len(documents)} jobs", hint=f"write at most {MAX_JOBS} in one file"
        )
    return _read(documents, _context(source, policy, types), overrides)


def read_job_object(
    job: Json,
    *,
    source: str = "job",
    policy: Policy | None = None,
    overrides: Mapping[str, Json] | None = None,
    types: tuple[str, ...] = (),
) -> JobFile:
    """Read one job that is already parsed JSON; otherwise as `read_job`."""
    return _read([from_json(job)], _context(source, policy, types), overrides)


def default_name(source: str) -> str:
    """Return the name of a job from the name of its file: `a/My Job.yaml` is `my-job`."""
    stem = re.split(r"[/\\]", source)[-1].split(".")[0].lower()
    return re.sub(r"[^a-z0-9]+", "-", stem).strip("-")[:63].strip("-") or "job"


def _context(source: str, policy: Policy | None, types: tuple[str, ...]) -> _Context:
    levels = policy.topology if policy else DEFAULT_LEVELS
    return _Context(source=source, policy=policy, group=GroupContext(levels=levels, types=types))


def _read(
    documents: list[Node], context: _Context, overrides: Mapping[str, Json] | None
) -> JobFile:
    specs: list[JobSpec] = []
    warnings: list[str] = []
    for position, document in enumerate(documents):
        node = merge_overrides(document, overrides) if overrides else document
        name = default_name(context.source)
        if len(documents) > 1:
            name = f"{name[:58]}-{position + 1}"
        spec = _read_spec(Cursor(context.source, "", node), context, name)
        specs.append(spec)
        prefix = f"{spec.name}: " if len(documents) > 1 else ""
        warnings += [prefix + warning for warning in _warnings(spec)]
    return JobFile(specs=tuple(specs), warnings=tuple(warnings))


def _read_spec(at: Cursor, context: _Context, name: str) -> JobSpec:
    if not isinstance(at.node.value, dict):
        raise at.fault(f"{at.shown()} is not a job", "write keys such as run: and per_task:")
    fields = at.fields(JOB_KEYS, moved=_MOVED)
    _refuse_user(fields)
    job_groups, topology = _groups(fields, context)
    speed, goodput = fields.read(
        "speed", lambda a: parts.read_speed(a, context.group.types), _NO_SPEED
    )
    env = fields.read("env", parts.read_env, _NO_TEXTS)
    return JobSpec(
        name=fields.read("name", _name, name),
        queue=fields.read("queue", lambda a: _queue(a, context.policy), None),
        priority=fields.read("priority", lambda a: a.integer(-1000, 1000), 0),
        preemptible=fields.read("preemptible", Cursor.boolean, None),
        groups=job_groups,
        topology=topology,
        nodes=fields.read("nodes", parts.read_nodes, None),
        time=fields.read("time", parts.read_time, TimeSpec()),
        model=model_block.read_model_key(fields, job_groups),
        run=fields.need("run", _script, "write the command of each task, such as run: python a.py"),
        setup=fields.read("setup", _script, None),
        framework=fields.read("framework", lambda a: a.choice(Framework), Framework.PLAIN),
        env=env,
        secrets=fields.read("secrets", lambda a: parts.read_secrets(a, env), ()),
        workdir=fields.read("workdir", parts.read_path, None),
        outputs=fields.read("outputs", parts.read_path, None),
        image=fields.read("image", parts.read_image, None),
        mounts=_mounts(fields),
        checkpoint=fields.read("checkpoint", parts.read_checkpoint, CheckpointSpec()),
        retry=fields.read("retry", parts.read_retry, RetrySpec()),
        repair=fields.read("repair", lambda a: a.choice(Repair), Repair.GANG),
        depends_on=fields.read("depends_on", parts.read_depends_on, ()),
        array=fields.read("array", parts.read_array, None),
        reservation=fields.read("reservation", parts.read_name, None),
        sites=fields.read("sites", parts.read_sites, ()),
        speed=speed,
        goodput=goodput,
        notify=fields.read("notify", parts.read_notify, ()),
        labels=fields.read("labels", parts.read_labels, _NO_TEXTS),
        wait_for_capacity=fields.read("wait_for_capacity", Cursor.boolean, False),
    )


_NO_TEXTS: Final[dict[str, str]] = {}
_NO_SPEED: Final[tuple[dict[str, float], tuple[Goodput, ...]]] = ({}, ())


def _mounts(fields: Fields) -> tuple[Mount, ...]:
    found = fields.read("mounts", parts.read_mounts, ())
    at = fields.find("mounts")
    if found and at is not None and fields.find("image") is None:
        fix = "name an image; without one the job sees the node's own paths"
        raise at.fault("there is no container to mount them in", fix)
    return found


def _refuse_user(fields: Fields) -> None:
    user = fields.find("user")
    if user is not None:
        raise user.fault(
            f"{user.shown()}: a job belongs to the user of the token that submits it",
            "remove it, or submit with that user's token",
        )


def _groups(
    fields: Fields, context: _Context
) -> tuple[tuple[TaskGroup, ...], TopologyRequest | None]:
    """Return the groups and the topology of the whole job.

    In a flat file the topology belongs to the one group, so that all its keys may be used.
    """
    listed = fields.find("groups")
    if listed is None:
        return (groups.read_group_fields(fields, context.group),), None
    for key in FLAT_KEYS:
        inner = fields.find(key)
        if inner is not None and key != "topology":
            raise inner.fault("stands beside groups", f"write {key} inside a group")
    found = groups.read_groups(listed, context.group)
    topology = fields.read("topology", lambda a: groups.read_topology(a, context.group), None)
    if topology is not None and (topology.slice or topology.leader):
        key = "slice" if topology.slice else "leader"
        at = fields.at.child(f"topology.{key}", listed.node)
        raise at.fault("belongs to one group", f"write {key} in the topology of a group")
    groups.check_leaders(listed, found)
    return found, topology


def _name(at: Cursor) -> str:
    return at.word(NAME_FORM, pattern=NAME)


def _queue(at: Cursor, policy: Policy | None) -> str:
    fix = "write the path of a queue, such as research/nlp"
    path = at.word(fix, pattern=r"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$", most=255)
    if policy is not None:
        known = walk_queues(policy)
        if QueuePath(path) not in known:
            listed = f"queues: {', '.join(known)}"[:400]
            hint = did_you_mean(path, known) or listed
            raise at.fault(f"'{path}' is no queue", hint, code="not_found")
    return path


def _script(at: Cursor) -> str:
    fix = "write a command, or several lines after a |"
    text = at.text(fix, most=MAX_SCRIPT)
    if not text.strip():
        raise at.fault(f"{at.shown()} is empty", fix)
    return text


def _warnings(spec: JobSpec) -> list[str]:
    found = []
    time = spec.time
    if time.limit_s is not None and time.expected_s is not None and time.expected_s > time.limit_s:
        found.append("time.expected is longer than time.limit: the job will be stopped before")
    if spec.retry.max == 0 and spec.retry.on not in ((), RetrySpec().on):
        found.append("retry.on has no effect: retry.max is 0")
    return found
