"""Walking a foreign YAML file: every field is taken by a rule or ends in the report."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from tercio.errors import UserError, did_you_mean
from tercio.formats.document import Json, Node
from tercio.formats.foreign.draft import Report

VARIABLE: Final = r"[A-Za-z_][A-Za-z0-9_]*"

Rule = Callable[["Field"], None]


class Field:
    """One field with its dotted name, so that faults and losses name it."""

    def __init__(self, source: str, name: str, node: Node, report: Report) -> None:
        self.source, self.name, self.node, self.report = source, name, node, report

    @property
    def value(self) -> Json:
        """The value without its places."""
        return plain(self.node)

    @property
    def text(self) -> str:
        """A single value as written.

        Raises:
            UserError: it is a list, a mapping or nothing.
        """
        if isinstance(self.node.value, dict | list) or self.node.value is None:
            raise self.fault("is not a single value", "write one value")
        return self.node.raw if not isinstance(self.node.value, str) else self.node.value

    def fault(self, problem: str, fix: str) -> UserError:
        """Return the error for this field."""
        where = f"{self.source}:{self.node.line}" if self.node.line else self.source
        return UserError(f"{where}: {self.name}: {problem}", hint=fix, field=self.name)

    def child(self, key: str, node: Node) -> Field:
        """Return a field below this one."""
        return Field(self.source, f"{self.name}.{key}" if self.name else key, node, self.report)

    def rows(self) -> list[Field]:
        """Return the rows of a list, or the one value there is."""
        value = self.node.value
        if not isinstance(value, list):
            return [self]
        return [self.child(str(at), row) for at, row in enumerate(value)]

    def keyed(self) -> dict[str, Field]:
        """Return the fields of a mapping.

        Raises:
            UserError: it is none.
        """
        value = self.node.value
        if not isinstance(value, dict):
            raise self.fault("is not a mapping", "write keys and values")
        return {key: self.child(key, node) for key, node in value.items()}

    def walk(
        self, rules: Mapping[str, Rule], unkept: Mapping[str, str], *, is_closed: bool = False
    ) -> None:
        """Apply a rule to each key; a key without one is reported as dropped.

        `is_closed` says that the other tool refuses unknown keys: what looks like a slip of the
        hand for a known one is then refused here too.
        """
        for key, field in self.keyed().items():
            if field.node.value is None:
                continue
            rule = rules.get(key)
            if rule is not None:
                rule(field)
                continue
            slip = did_you_mean(key, [*rules, *unkept]) if is_closed and key not in unkept else ""
            if slip:
                field.refused(f"no field has this name: {slip}")
            else:
                field.dropped(unkept.get(key, "it is no field that Tercio knows"))

    def number(self, low: int, high: int) -> int:
        """Return a whole number inside bounds."""
        found = re.fullmatch(r"[+-]?\d{1,9}", self.text.strip())
        if found is None or not low <= int(found[0]) <= high:
            raise self.fault(f"'{self.text[:40]}' is out of bounds", f"write from {low} to {high}")
        return int(found[0])

    def boolean(self) -> bool:
        """Return true or false."""
        if not isinstance(self.node.value, bool):
            raise self.fault("is not true or false", "write true or false")
        return self.node.value

    def changed(self, why: str) -> None:
        """Report that it means something else now."""
        self.report.changed(self.name, self._shown(), why, self.node.line)

    def dropped(self, why: str) -> None:
        """Report that it has no effect."""
        self.report.dropped(self.name, self._shown(), why, self.node.line)

    def refused(self, why: str) -> None:
        """Report that the job must not run without it."""
        self.report.refused(self.name, self._shown(), why, self.node.line)

    def _shown(self) -> str:
        value = self.node.value
        if isinstance(value, dict):
            return f"{{{', '.join(value)}}}"
        return f"[{len(value)} rows]" if isinstance(value, list) else self.node.raw


def plain(node: Node) -> Json:
    """Return the value of a node without its places; scalars as resolved."""
    value = node.value
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return value


def environment(field: Field, missing: str) -> tuple[dict[str, Json], list[str]]:
    """Read a mapping, or a list of `K=V`: values as text, and names that have none."""
    env: dict[str, Json] = {}
    bare: list[str] = []
    if isinstance(field.node.value, list):
        for row in field.rows():
            name, equals, value = row.text.partition("=")
            _put(env, bare, row, name.strip(), value if equals else None)
    else:
        for name, inner in field.keyed().items():
            _put(env, bare, inner, name, None if inner.node.value is None else inner.text)
    for name in bare:
        field.report.changed(f"{field.name}.{name}", None, missing.format(name), field.node.line)
    return env, bare


def _put(env: dict[str, Json], bare: list[str], field: Field, name: str, value: str | None) -> None:
    if not re.fullmatch(VARIABLE, name):
        raise field.fault(f"'{name[:40]}' is not a name of a variable", "write NAME=VALUE")
    if name.startswith("TERCIO_"):
        field.dropped("Tercio sets its own")
    elif value is None:
        bare.append(name)
    else:
        env[name] = value
