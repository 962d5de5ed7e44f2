"""The JSON Schema of the job file, for editors and other programs.

It is made from the same keys and forms that the reader uses. `job.schema.json` beside this
module is its text; a test holds the two together. The reader checks more than a schema can:
names against each other, numbers inside texts, device types against the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from tercio.formats.cursor import ENVIRONMENT, NAME, SMALLEST_BARE_BYTES
from tercio.formats.devices import PATTERN as DEVICES
from tercio.formats.document import Json
from tercio.formats.grammar import ARRAY_PATTERN, JOB_ID, SIGNALS
from tercio.formats.groups import GROUP_KEYS, GROUP_NAME, MAX_TASKS, PER_TASK_KEYS, TOPOLOGY_KEYS
from tercio.formats.model_block import COUNT, MODEL_KEYS
from tercio.formats.native import JOB_KEYS
from tercio.formats.native import NAME as JOB_NAME
from tercio.formats.parts import (
    LABEL,
    MOUNT,
    NODE_NAME,
    NOTIFY_EVENTS,
    PATH,
    RESERVED_ENV,
    RETRY_CAUSES,
    URL,
)
from tercio.model.job import DependsWhen, Framework, Repair
from tercio.model.sizing import AUTO_METHODS

Schema = dict[str, Json]

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
TITLE: Final = "Tercio job file"

_DURATION: Final = (
    r"^\s*(\d+(\.\d+)?|(\d+-)?\d+:\d{2}(:\d{2})?|(\d+(\.\d+)?\s*([mM][sS]|[sSmMhHdDwW])\s*)+)\s*$"
)
_MEMORY: Final = r"^\s*\d+(\.\d+)?\s*([kKmMgGtTpP]([iI]?[bB])?|[bB])?\s*$"
_CORES: Final = r"^\s*\d+(\.\d{1,3}0*)?\s*$"
_INSTANT: Final = r"^\s*\d{4}-?\d{2}-?\d{2}[T ]?[0-9:.,]*([Zz]|[+-]\d{2}:?\d{2}(:?\d{2})?)\s*$"
_RANGE: Final = r"^\s*[0-9]{1,9}\s*(\.\.\s*[0-9]{1,9}\s*)?$"

DESCRIPTIONS: Final = {
    "name": "Name shown in lists; default: the file's name.",
    "queue": "Path in the queue tree, such as research/nlp; default: the policy's.",
    "user": "Always null: the user is the one of the token.",
    "priority": "Larger first, inside one queue. -1000 to 1000; default 0.",
    "preemptible": "Whether the job may be stopped for others; default: the queue's.",
    "groups": "Task groups. One unnamed group may be written at the top level instead.",
    "tasks": "Size of the gang: 4, or 2..8 for an elastic gang of at least 2; default 1.",
    "per_task": "What each task needs on its node.",
    "topology": "Where tasks may stand to each other.",
    "subgroups": "Nested gangs, of the same shape as groups.",
    "min_subgroups": "How many of the subgroups must start; default: all.",
    "exclusive": "Whether each task takes a whole node; default false.",
    "nodes": "Which nodes may be used.",
    "time": "Limit, estimate, deadline, earliest start, and slack for cheaper power.",
    "run": "Shell command of each task.",
    "setup": "Shell script that runs once per task before run; its failure fails the attempt.",
    "framework": "How the tasks find each other; default plain.",
    "env": "Environment variables.",
    "secrets": "Names of secrets; values are taken at submit.",
    "workdir": "Directory to snapshot at submit, or an absolute path on the nodes.",
    "outputs": "Directory made for each attempt, given as TERCIO_OUTPUT_DIR.",
    "image": "Container image to run in; default: the node's own software.",
    "mounts": "Paths of the node in the container: PATH, SOURCE:TARGET or SOURCE:TARGET:ro.",
    "checkpoint": "How the job saves its work before a planned stop.",
    "checks": "What a gang checks before its command.",
    "retry": "Which ends of an attempt start another one.",
    "repair": "What a lost member does to its gang; default gang.",
    "depends_on": "Jobs that must end first.",
    "array": "One element per index: 0-99%8 runs 100, 8 at once.",
    "reservation": "Reservation to run in.",
    "sites": "Allowed sites in order of preference; default: any.",
    "speed": "Relative speed by device type, or a goodput profile.",
    "notify": "Webhooks.",
    "labels": "Free labels.",
    "model": "What is trained, for devices: auto.",
    "wait_for_capacity": "Whether a job that no node can hold now waits for new nodes.",
}


def job_schema() -> Schema:
    """Return the JSON Schema (draft 2020-12) of one job."""
    return {
        "$schema": DIALECT,
        "title": TITLE,
        "description": "One job. A YAML file may hold several, separated by ---.",
        **_object(_job_keys(), JOB_KEYS, required=("run",)),
        "$defs": _definitions(),
    }


def schema_text() -> str:
    """Return the text of `job.schema.json`."""
    return json.dumps(job_schema(), indent=2) + "\n"


def _job_keys() -> dict[str, Schema]:
    return {
        **_group_keys(),
        "name": _words(JOB_NAME),
        "queue": _words(r"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$"),
        "user": {"type": "null"},
        "priority": _integer(-1000, 1000),
        "preemptible": {"type": "boolean"},
        "groups": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/group"}},
        "nodes": _object(
            {"match": _text(), "exclude": _array(_words(NODE_NAME))}, ("match", "exclude")
        ),
        "time": _object(
            {
                "limit": _duration(),
                "expected": _duration(),
                "deadline": _instant(),
                "earliest": _instant(),
                "flexible": _duration(),
            },
            ("limit", "expected", "deadline", "earliest", "flexible"),
        ),
        "run": _text(pattern=r"\S"),
        "setup": _text(pattern=r"\S"),
        "framework": {"enum": [member.value for member in Framework]},
        "env": {
            "type": "object",
            "propertyNames": {"pattern": ENVIRONMENT, "not": {"enum": list(RESERVED_ENV)}},
            "additionalProperties": _word(),
        },
        "secrets": _array({**_text(ENVIRONMENT), "not": {"enum": list(RESERVED_ENV)}}),
        "workdir": _words(PATH),
        "outputs": _words(PATH),
        "image": _text(r"^\S{1,512}$"),
        "mounts": _array(_words(MOUNT)),
        "checkpoint": _checkpoint(),
        "checks": _object(
            {"allreduce": {"anyOf": [{"type": "boolean"}, _duration()]}}, ("allreduce",)
        ),
        "retry": _retry(),
        "repair": {"enum": [member.value for member in Repair]},
        "depends_on": _depends_on(),
        "array": _text(ARRAY_PATTERN),
        "reservation": _words(NAME),
        "sites": _array(_words(NAME)),
        "speed": {
            "type": "object",
            "additionalProperties": {
                "anyOf": [{"type": "number", "exclusiveMinimum": 0}, _goodput()]
            },
        },
        "notify": _notify(),
        "labels": {
            "type": "object",
            "propertyNames": {"pattern": LABEL},
            "additionalProperties": _word(),
        },
        "wait_for_capacity": {"type": "boolean"},
        "model": {"anyOf": [_text(r"^\S+$"), _model()]},
    }


def _group_keys() -> dict[str, Schema]:
    return {
        "name": _words(GROUP_NAME),
        "tasks": {"type": ["integer", "string"], "pattern": _RANGE, "minimum": 1,
                  "maximum": MAX_TASKS},
        "per_task": {"$ref": "#/$defs/per_task"},
        "topology": {"$ref": "#/$defs/topology"},
        "subgroups": {"type": "array", "items": {"$ref": "#/$defs/group"}},
        "min_subgroups": _integer(1, MAX_TASKS),
        "exclusive": {"type": "boolean"},
    }  # fmt: skip


def _definitions() -> Schema:
    level = _words(NAME)
    topology: dict[str, Schema] = {
        "same": level,
        "prefer": level,
        "spread": level,
        "slice": _object(
            {"tasks": _integer(1, MAX_TASKS), "same": level}, ("tasks", "same"),
            required=("tasks", "same"),
        ),
        "leader": _words(GROUP_NAME),
    }  # fmt: skip
    per_task: dict[str, Schema] = {
        "devices": {"type": ["string", "integer", "number"], "pattern": DEVICES,
                    "exclusiveMinimum": 0},
        "cpus": {"type": ["string", "number"], "pattern": _CORES, "exclusiveMinimum": 0},
        "memory": _memory(),
        "shm": _memory(),
    }  # fmt: skip
    return {
        "group": _object(_group_keys(), GROUP_KEYS),
        "per_task": _object(per_task, PER_TASK_KEYS),
        "topology": _object(topology, TOPOLOGY_KEYS),
    }


def _model() -> Schema:
    count: Schema = {"type": ["string", "number"], "pattern": COUNT, "exclusiveMinimum": 0}
    keys: dict[str, Schema] = {
        "name": _text(r"^\S+$"),
        "config": {"type": "object"},
        "method": {"enum": list(AUTO_METHODS)},
        "tokens": count,
        "seq": count,
        "batch_tokens": count,
        "micro_batch": {"type": "number", "exclusiveMinimum": 0},
        "devices_max": _integer(1, 1_000_000),
    }
    return _object(keys, MODEL_KEYS)


def _checkpoint() -> Schema:
    names = [*SIGNALS, *(name.removeprefix("SIG") for name in SIGNALS)]
    keys: dict[str, Schema] = {
        "path": _words(PATH),
        "signal": {"enum": names},
        "grace": _duration(),
        "every": {"anyOf": [{"const": "auto"}, _duration()]},
    }
    return _object(keys, keys)


def _retry() -> Schema:
    keys: dict[str, Schema] = {
        "on": _array({"enum": [cause.value for cause in RETRY_CAUSES]}),
        "max": _integer(0, 1000),
        "backoff": _duration(),
    }
    return _object(keys, keys)


def _depends_on() -> Schema:
    keys: dict[str, Schema] = {
        "job": _text(JOB_ID),
        "when": {"enum": [member.value for member in DependsWhen]},
    }
    return {
        "type": "array",
        "items": {"anyOf": [_text(JOB_ID), _object(keys, keys, required=("job",))]},
    }


def _goodput() -> Schema:
    keys: dict[str, Schema] = {
        "tasks": {"type": "array", "minItems": 1, "items": _integer(1, 100_000)},
        "units_per_s": {"type": "array", "items": {"type": "number", "minimum": 0}},
    }
    return _object(keys, keys, required=keys)


def _notify() -> Schema:
    keys: dict[str, Schema] = {
        "on": {"type": "array", "minItems": 1, "items": {"enum": list(NOTIFY_EVENTS)}},
        "url": _text(URL),
    }
    return {"type": "array", "maxItems": 32, "items": _object(keys, keys, required=keys)}


def _object(
    keys: dict[str, Schema], order: Iterable[str], *, required: Iterable[str] = ()
) -> Schema:
    """Return an object of known keys. A key that is not required may be null: not given."""
    required = tuple(required)
    properties: Schema = {}
    for key in order:
        value = keys[key] if key in required else _or_null(keys[key])
        described = {"description": DESCRIPTIONS[key]} if keys.get("run") else {}
        properties[key] = {**described, **value}
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": list(required)} if required else schema


def _or_null(schema: Schema) -> Schema:
    return schema if schema.get("type") == "null" else {"anyOf": [schema, {"type": "null"}]}


def _array(rows: Schema) -> Schema:
    return {"type": "array", "uniqueItems": True, "items": rows}


def _text(pattern: str | None = None) -> Schema:
    return {"type": "string", "pattern": pattern} if pattern else {"type": "string"}


def _word() -> Schema:
    return {"type": ["string", "number", "boolean"]}


def _words(pattern: str) -> Schema:
    """Return the schema of a text that YAML may have taken for a number: `007` is a name."""
    return {"type": ["string", "number", "boolean"], "pattern": pattern}


def _integer(low: int, high: int) -> Schema:
    return {
        "type": ["integer", "string"],
        "minimum": low,
        "maximum": high,
        "pattern": r"^-?[0-9]{1,18}$",
    }


def _duration() -> Schema:
    return {"type": ["string", "number"], "minimum": 0, "pattern": _DURATION}


def _memory() -> Schema:
    return {"type": ["string", "integer"], "minimum": SMALLEST_BARE_BYTES, "pattern": _MEMORY}


def _instant() -> Schema:
    return {"type": ["string", "number"], "minimum": 0, "pattern": _INSTANT}
