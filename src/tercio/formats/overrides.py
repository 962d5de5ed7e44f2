"""Options of the command line, merged into the file's first form before it is read.

| option | key here | becomes |
|---|---|---|
| `--gpus H100:8` | `gpus` | `per_task.devices` |
| `--cpus 8`, `--memory 64GiB` | `cpus`, `memory` | `per_task.cpus`, `per_task.memory` |
| `--nodes 2` | `nodes` | `tasks` |
| `--time 8h` | `time` | `time.limit` |
| `--env K=V` | `env: {K: V}` | added to `env` |
| `--secret NAME` | `secrets: [NAME]` | added to `secrets` |
| `-- CMD` | `run` | `run`; a list of words is quoted for the shell |
| `--name`, `--queue`, `--priority`, `--array`, `--workdir`, ... | the same word | that key |
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Final

from tercio.errors import UserError, did_you_mean
from tercio.formats.document import Json, Node, from_json

PLAIN: Final = (
    "name", "queue", "priority", "array", "workdir", "framework", "image", "sites", "labels",
    "preemptible", "reservation", "wait_for_capacity",
)  # fmt: skip
OF_GROUP: Final = {"gpus": "devices", "cpus": "cpus", "memory": "memory", "nodes": "tasks"}
KEYS: Final = (*PLAIN, *OF_GROUP, "time", "env", "secrets", "run")


def merge_overrides(document: Node, overrides: Mapping[str, Json]) -> Node:
    """Return the document with the options put in; None values are not given.

    Raises:
        UserError: an unknown option, or one for a group where the file has several.
    """
    top = dict(document.value) if isinstance(document.value, dict) else {}
    for key, value in overrides.items():
        if value is None:
            continue
        if key not in KEYS:
            fix = did_you_mean(key, KEYS) or f"known options: {', '.join(KEYS)}"
            raise UserError(f"overrides.{key}: unknown option", hint=fix, field=f"overrides.{key}")
        node = from_json(value)
        if key in PLAIN:
            top[key] = node
        elif key in OF_GROUP:
            _put_in_group(top, key, node)
        elif key == "secrets":
            top["secrets"] = _appended(top.get("secrets"), node)
        elif key == "time":
            top["time"] = _with(top.get("time"), {"limit": node})
        elif key == "env":
            if not isinstance(node.value, dict):
                fix = "write a mapping of names to values"
                raise UserError("overrides.env: not a mapping", hint=fix, field="overrides.env")
            top["env"] = _with(top.get("env"), node.value)
        else:
            top["run"] = _command(node)
    return Node(value=top, line=document.line, size=document.size)


def _with(node: Node | None, added: Mapping[str, Node]) -> Node:
    """Return a mapping node with keys added; anything else stays for the reader to refuse."""
    if node is None or node.value is None:
        return Node(value=dict(added))
    if not isinstance(node.value, dict):
        return node
    return Node(value={**node.value, **added}, line=node.line, size=node.size)


def _appended(node: Node | None, added: Node) -> Node:
    """Return a list node with rows added that it lacks."""
    if node is None or node.value is None:
        return added
    if not isinstance(node.value, list) or not isinstance(added.value, list):
        return node if not isinstance(node.value, list) else added
    known = [row.value for row in node.value]
    rows = node.value + [row for row in added.value if row.value not in known]
    return Node(value=rows, line=node.line, size=node.size)


def _put_in_group(top: dict[str, Node], key: str, node: Node) -> None:
    groups = top.get("groups")
    if groups is None or groups.value is None:
        _set_group_key(top, key, node)
        return
    rows = groups.value
    if not isinstance(rows, list) or len(rows) != 1 or not isinstance(rows[0].value, dict):
        raise UserError(
            f"overrides.{key}: the file has several task groups",
            hint=f"change {OF_GROUP[key]} in the file: it is not clear which group is meant",
            field=f"overrides.{key}",
        )
    group = dict(rows[0].value)
    _set_group_key(group, key, node)
    top["groups"] = Node(value=[Node(value=group, line=rows[0].line)], line=groups.line)


def _set_group_key(group: dict[str, Node], key: str, node: Node) -> None:
    if key == "nodes":
        group["tasks"] = node
    else:
        group["per_task"] = _with(group.get("per_task"), {OF_GROUP[key]: node})


def _command(node: Node) -> Node:
    if not isinstance(node.value, list):
        return node
    words = [word.raw for word in node.value]
    text = shlex.join(words)
    return Node(value=text, raw=text)
