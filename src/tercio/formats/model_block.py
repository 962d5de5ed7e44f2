"""The `model:` block of a job file: what `devices: auto` is chosen for."""

from __future__ import annotations

import json
import re
from typing import Final

from tercio.formats.cursor import Cursor, Fields
from tercio.formats.document import Json, Node
from tercio.model.job import TaskGroup
from tercio.model.sizing import AUTO_METHODS, ModelSpec
from tercio.model.units import format_number

MODEL_KEYS: Final = (
    "name", "config", "method", "tokens", "seq", "batch_tokens", "micro_batch", "devices_max",
)  # fmt: skip
COUNT: Final = r"^\s*\d+(\.\d+)?\s*[kKmMbBgGtT]?\s*$"
_SCALES: Final = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_COUNT_FORM: Final = "write a count such as 2048, 500M, 100B or 1T"
_AUTO_FORM: Final = "write model: {name: llama-3-8b, method: lora, tokens: 100M}"
MAX_CONFIG: Final = 64 * 1024


def read_model_key(fields: Fields, groups: tuple[TaskGroup, ...]) -> ModelSpec | None:
    """Read `model`, and check it against the groups whose devices it is to choose.

    Raises:
        UserError: naming line, field, value and fix.
    """
    model = fields.read("model", read_model, None)
    auto = [group for group in groups if _is_auto(group)]
    if not auto:
        return model
    at = fields.find("per_task") or fields.find("groups") or fields.at
    if model is None:
        raise at.fault("devices: auto needs a model to choose them for", _AUTO_FORM)
    if len(groups) > 1 or groups[0].subgroups:
        raise at.fault("devices: auto is for a job of one group", "write the devices of each group")
    tasks = fields.find("tasks")
    if tasks is not None:
        raise tasks.fault("sizing chooses the tasks of devices: auto", "remove tasks")
    return model


def _is_auto(group: TaskGroup) -> bool:
    return group.per_task.is_auto or any(_is_auto(inner) for inner in group.subgroups)


def read_model(at: Cursor) -> ModelSpec:
    """Read the block: a name, or a mapping."""
    if not isinstance(at.node.value, dict):
        return ModelSpec(name=_name(at))
    fields = at.fields(MODEL_KEYS, moved={"model": "did you mean 'name'?"})
    name, config = fields.read("name", _name, ""), fields.read("config", _config, None)
    if not name and config is None:
        raise at.fault("names no model", _AUTO_FORM)
    method = fields.read("method", lambda a: a.option(AUTO_METHODS), "lora")
    tokens = fields.read("tokens", lambda a: _count(a, 1e18), None)
    if method == "pretrain" and tokens is None:
        raise at.fault("pre-training needs the number of tokens", "write tokens: 100B")
    return ModelSpec(
        name=name,
        config=config,
        method=method,
        tokens=tokens,
        seq=int(fields.read("seq", lambda a: _count(a, 1e8), 4096)),
        batch_tokens=fields.read("batch_tokens", lambda a: _count(a, 1e12), 4_194_304.0),
        micro_batch=fields.read("micro_batch", lambda a: a.number(0.01, 1e6), 1.0),
        devices_max=fields.read("devices_max", lambda a: a.integer(1, 1_000_000), None),
    )


def _name(at: Cursor) -> str:
    return at.word(
        "write the name of a model such as llama-3-8b", pattern=r"^[^\s\x00-\x1f]+$", most=200
    )


def _config(at: Cursor) -> str:
    """Return a model's configuration as JSON text with sorted keys."""
    if not isinstance(at.node.value, dict):
        raise at.wrong("a mapping", "write the model's configuration, as in its config.json")
    text = json.dumps(_plain(at.node), sort_keys=True)
    if len(text) > MAX_CONFIG:
        raise at.fault(f"{len(text)} characters", f"write at most {MAX_CONFIG}")
    return text


def _plain(node: Node) -> Json:
    value = node.value
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value


def _count(at: Cursor, most: float) -> float:
    text = at.word(_COUNT_FORM, most=40)
    found = re.match(r"^\s*(\d+(?:\.\d+)?)(e\d+)?\s*([kmbgt]?)\s*$", text.lower())
    if found is None or isinstance(at.node.value, bool):
        raise at.wrong("a count", _COUNT_FORM)
    count = float(found[1] + (found[2] or "")) * _SCALES[found[3]]
    if not 1 <= count <= most:
        raise at.fault(f"{at.shown()} is out of bounds", f"write from 1 to {format_number(most)}")
    return count
