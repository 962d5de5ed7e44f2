"""What a reader makes of a text, and every text with one key less: a key must make a difference."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tercio.errors import UserError
from tercio.formats.document import Node, read_documents
from tercio.formats.foreign.detect import read_foreign
from tercio.formats.foreign.draft import Fate
from tercio.formats.foreign.sbatch_options import directives, parse_options, split

FILES = Path(__file__).with_name("files")
KINDS = ("sbatch", "sky", "dstack", "kubernetes")
CORPUS = [(kind, path) for kind in KINDS for path in sorted((FILES / kind).iterdir())]

NAMES_ONLY = ("metadata.name", "containers.0.name")
"""Names inside a manifest that only the manifest itself refers to."""

AS_ALWAYS = [
    ["spec.completions", 1], ["spec.parallelism", 1], ["working_dir", "."],
    ["run", "true"], ["run", True], ["stop_criteria", "all-done"],
]  # fmt: skip
"""Values that say what is so without them."""


def outcome(text: str, kind: str) -> object:
    """Jobs and losses without their lines, or the fault."""
    try:
        found = read_foreign(text, source="file", kind=kind, now_s=1.8e9)
    except UserError as error:
        assert error.hint, error.message
        return error.message
    losses = [(loss.field, loss.value, loss.fate, loss.why) for loss in found.losses]
    return [dict(job) for job in found.jobs], losses, found.is_held


def silent_keys(text: str, kind: str) -> list[str]:
    """Return the keys that could be taken out of a file without any trace."""
    if kind == "sbatch":
        return [name for name, less in _without_an_option(text) if _is_same(text, less, kind)]
    documents = [_plain(document) for document in read_documents(text, source="file")]
    documents = _without_no_device(documents)
    base = outcome(_dumped(documents), kind)
    if isinstance(base, str):
        return []  # the file is refused as a whole
    told = _left_out(_dumped(documents), kind)
    found = []
    for path in _paths(documents):
        less = copy.deepcopy(documents)
        value = _cut(less, path)
        name = ".".join(str(step) for step in path[1:])
        is_said = _says(value) and not name.endswith(NAMES_ONLY)
        is_said = is_said and [name, value] not in AS_ALWAYS
        is_told = any(name == field or name.startswith(f"{field}.") for field in told)
        if is_said and not is_told and outcome(_dumped(less), kind) == base:
            found.append(name)
    return found


def _left_out(text: str, kind: str) -> list[str]:
    """Fields that the report says to be left out with all that is in them."""
    try:
        losses = read_foreign(text, source="file", kind=kind, now_s=1.8e9).losses
    except UserError:
        return []
    return [loss.field for loss in losses if loss.fate is not Fate.CHANGED]


def _is_same(text: str, less: str, kind: str) -> bool:
    return outcome(text, kind) == outcome(less, kind)


def _without_an_option(text: str) -> Iterator[tuple[str, str]]:
    lines = text.splitlines()
    for number, words in directives(text)[0]:
        options = list(parse_options(split(words, source="", line=0), source="", line=0))
        for left_out in options:
            kept = [option for option in options if option is not left_out]
            written = [f"--{o.name}" + (f"='{o.value}'" if o.value else "") for o in kept]
            line = f"#SBATCH {' '.join(written)}" if kept else "# nothing"
            less = [*lines[: number - 1], line, *lines[number:]]
            yield left_out.name, "\n".join(less)


def _plain(node: Node) -> Any:
    value = node.value
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value


def _dumped(documents: list[Any]) -> str:
    return "\n---\n".join(json.dumps(document) for document in documents)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    steps = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        steps = enumerate(value)
    for step, inner in steps:
        here = (*path, step)
        if len(here) > 1:
            yield here
        yield from _paths(inner, here)


def _says(value: Any) -> bool:
    """Whether a value says anything: an empty one means what no value means."""
    if isinstance(value, dict | list):
        return any(_says(inner) for inner in (value.values() if isinstance(value, dict) else value))
    return value not in (None, False, "", "off")


def _without_no_device(documents: list[Any]) -> list[Any]:
    """Take out a GPU of dstack that asks for none, which is so without it."""
    for document in documents:
        resources = document.get("resources") if isinstance(document, dict) else None
        if isinstance(resources, dict) and "gpu" in resources:
            gpu = resources["gpu"]
            count = gpu.get("count") if isinstance(gpu, dict) else str(gpu).rpartition(":")[2]
            if str(count) and not str(count).strip("0"):
                del resources["gpu"]
    return documents


def _cut(documents: list[Any], path: tuple[Any, ...]) -> Any:
    holder: Any = documents
    for step in path[:-1]:
        holder = holder[step]
    return holder.pop(path[-1])
