"""YAML and JSON to located values: every value knows the line it was written on.

The reader uses only the event stream of PyYAML's safe loader: no tags, no objects. Scalars
are resolved by the core rules of YAML 1.2, so `on`, `off`, `yes`, `12:30` and dates stay text.
Refused, each with its line: a key twice in one mapping, a key that is not text, tags, aliases
that grow beyond reason, deep nesting, characters that no file or environment can hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec
import yaml

from tercio.errors import UserError

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"

MAX_TEXT: Final = 1 << 20
MAX_VALUES: Final = 100_000
MAX_DEPTH: Final = 32

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NULL: Final = re.compile(r"^(?:~|null|Null|NULL|)$")
_BOOL: Final = re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")
_INT: Final = re.compile(r"^[-+]?[0-9]{1,300}$")
_HEX: Final = re.compile(r"^0(?:x[0-9a-fA-F]{1,15}|o[0-7]{1,20})$")
_FLOAT: Final = re.compile(r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]{1,3})?$")
_UNSAFE: Final = re.compile(r"[\x00\ud800-\udfff]")


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A value with its place.

    Attributes:
        value: None, bool, int, float, str, a list of nodes or a dict of nodes by key.
        line: from 1; 0 where there is none (JSON bodies, command-line options).
        raw: a scalar as written; its JSON form otherwise.
        size: number of values in it, aliases counted as often as they stand.
    """

    value: bool | int | float | str | list[Node] | dict[str, Node] | None
    line: int = 0
    raw: str = ""
    size: int = 1


def read_documents(text: str, *, source: str) -> list[Node]:
    """Return the documents of a YAML text, empty ones left out.

    Raises:
        UserError: the text is no YAML, or holds what this reader refuses.
    """
    if len(text) > MAX_TEXT:
        raise UserError(
            f"{source}: {len(text)} characters",
            code="too_large",
            hint=f"write at most {MAX_TEXT}; submit more files instead",
        )
    try:
        events = yaml.parse(text, Loader=_LOADER)
        return [node for node in _Builder(source, events).documents() if node.value is not None]
    except yaml.YAMLError as error:
        raise _syntax_error(error, source) from None


def from_json(value: Json, *, depth: int = 0) -> Node:
    """Return a value that is already parsed as a node without lines.

    Raises:
        UserError: a value that JSON cannot hold, deep nesting, or a bad character.
    """
    if depth > MAX_DEPTH:
        raise UserError("too deeply nested", hint=f"use at most {MAX_DEPTH} levels")
    if isinstance(value, str):
        _check_text(value, "", 0)
        return Node(value=value, raw=value)
    if value is None or isinstance(value, bool):
        return Node(value=value, raw={None: "null", True: "true", False: "false"}[value])
    if isinstance(value, int | float):
        raw = repr(value) if isinstance(value, float) or abs(value) < 1 << 63 else "a huge number"
        return Node(value=value, raw=raw)
    if isinstance(value, Mapping):
        mapping = {}
        for key, inner in value.items():
            if not isinstance(key, str):
                raise UserError(f"key {key!r} is not text", hint="write keys as text")
            mapping[key] = from_json(inner, depth=depth + 1)
        return Node(value=mapping, size=1 + sum(inner.size for inner in mapping.values()))
    if isinstance(value, list | tuple):
        rows = [from_json(inner, depth=depth + 1) for inner in value]
        return Node(value=rows, size=1 + sum(inner.size for inner in rows))
    raise UserError(f"{type(value).__name__} is not JSON", hint="write text, numbers, lists, maps")


class _Builder:
    """Builds nodes from parser events."""

    def __init__(self, source: str, events: Iterator[yaml.Event]) -> None:
        self._source = source
        self._events = events
        self._anchors: dict[str, Node] = {}

    def documents(self) -> Iterator[Node]:
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                self._anchors = {}
                yield self._node(next(self._events), 0)

    def _fault(self, event: yaml.Event, problem: str, fix: str) -> UserError:
        return UserError(f"{self._source}:{_line(event)}: {problem}", hint=fix)

    def _node(self, event: yaml.Event, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise self._fault(event, "too deeply nested", f"use at most {MAX_DEPTH} levels")
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                fix = f"define &{event.anchor} above, completely"
                raise self._fault(event, f"alias *{event.anchor} stands for nothing", fix)
            return self._anchors[event.anchor]
        if isinstance(event, yaml.ScalarEvent):
            node = self._scalar(event)
        elif isinstance(event, yaml.SequenceStartEvent):
            self._refuse_tag(event, event.tag)
            node = self._sequence(event, depth)
        else:
            assert isinstance(event, yaml.MappingStartEvent)
            self._refuse_tag(event, event.tag)
            node = self._mapping(event, depth)
        if node.size > MAX_VALUES:
            fix = f"write at most {MAX_VALUES} values, aliases included"
            raise self._fault(event, f"{node.size} values", fix)
        if event.anchor:
            self._anchors[event.anchor] = node
        return node

    def _refuse_tag(self, event: yaml.Event, tag: str | None) -> None:
        if tag not in (None, "!", "tag:yaml.org,2002:str", "tag:yaml.org,2002:map",
                       "tag:yaml.org,2002:seq"):  # fmt: skip
            raise self._fault(event, f"tag {tag!r} is not allowed", "write plain values")

    def _scalar(self, event: yaml.ScalarEvent) -> Node:
        self._refuse_tag(event, event.tag)
        _check_text(event.value, self._source, _line(event))
        is_plain = not event.style and not event.tag
        value = _resolve(event.value) if is_plain else event.value
        return Node(value=value, line=_line(event), raw=event.value)

    def _sequence(self, start: yaml.Event, depth: int) -> Node:
        rows: list[Node] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            rows.append(self._node(event, depth + 1))
        size = 1 + sum(row.size for row in rows)
        return Node(value=rows, line=_line(start), size=size)

    def _mapping(self, start: yaml.Event, depth: int) -> Node:
        own: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                raise self._fault(event, "a key is not text", "write keys as plain text")
            key = event.value
            _check_text(key, self._source, _line(event))
            inner = self._node(next(self._events), depth + 1)
            if key == "<<" and not event.style:
                merged = self._merge(event, inner) | merged
                continue
            if key in own:
                first = own[key].line
                raise self._fault(
                    event, f"key {key!r} stands twice", f"remove one (the other is on line {first})"
                )
            own[key] = inner
        mapping = merged | own
        size = 1 + sum(inner.size for inner in mapping.values())
        return Node(value=mapping, line=_line(start), size=size)

    def _merge(self, event: yaml.Event, node: Node) -> dict[str, Node]:
        sources = node.value if isinstance(node.value, list) else [node]
        merged: dict[str, Node] = {}
        for source in sources:
            if not isinstance(source.value, dict):
                raise self._fault(event, "<< needs a mapping", "write <<: *name of a mapping")
            merged = source.value | merged
        return merged


def _resolve(text: str) -> bool | int | float | str | None:
    """Resolve a plain scalar by the core schema of YAML 1.2.2, section 10.3.2."""
    if _NULL.match(text):
        return None
    if _BOOL.match(text):
        return text.lower() == "true"
    if _INT.match(text):
        return int(text)
    if _HEX.match(text):
        return int(text, 0)
    if _FLOAT.match(text):
        return float(text)
    return text


def _check_text(text: str, source: str, line: int) -> None:
    bad = _UNSAFE.search(text)
    if bad:
        where = f"{source}:{line}: " if line else ""
        raise UserError(
            f"{where}character {bad.group()!a} in {text[:40]!a}",
            hint="remove it: no file name, environment or command can hold it",
        )


def _line(event: yaml.Event) -> int:
    mark = event.start_mark
    return 0 if mark is None else int(mark.line) + 1


def _syntax_error(error: yaml.YAMLError, source: str) -> UserError:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        mark = error.problem_mark
        problem = " ".join(part for part in (error.context, error.problem) if part)
        if "'\\t'" in problem or "tab" in problem:
            fix = "indent with spaces, never with tabs"
        else:
            fix = f"look at column {mark.column + 1}: indentation, a missing quote or a colon"
        return UserError(f"{source}:{mark.line + 1}: not valid YAML: {problem}", hint=fix)
    return UserError(
        f"{source}: not valid YAML: {str(error).splitlines()[0]}",
        hint="write plain text in UTF-8 without control characters",
    )
