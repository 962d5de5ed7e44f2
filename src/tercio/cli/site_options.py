"""The options of `tercio site add`, made from the options structs of the engines' registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import click
import msgspec

from tercio.cli.verbs import Word
from tercio.engines.sites import options_type


@cache
def flags_of(kinds: Sequence[str]) -> tuple[click.Option, ...]:
    """Return one option for every field of every kind, in the order of the structs."""
    texts: dict[str, list[str]] = {}
    types_by_name: dict[str, Any] = {}
    for kind in kinds:
        for field in msgspec.inspect.type_info(options_type(kind)).fields:  # type: ignore[attr-defined]
            bare, text = _bare(field.type)
            texts.setdefault(field.name, []).append(f"{kind}: {text}")
            types_by_name.setdefault(field.name, bare)
    return tuple(_option(name, types_by_name[name], " ".join(texts[name])) for name in texts)


def option_names(kind: str) -> tuple[str, ...]:
    """Return the option names of one kind."""
    return tuple(field.name for field in msgspec.structs.fields(options_type(kind)))


def shown(options: Mapping[str, Any]) -> str:
    """Return options as a person would write them; those without a value are left out."""
    parts = []
    for name, value in options.items():
        text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
        if value is True:
            parts.append(name)
        elif text and value is not False and value is not None:
            parts.append(text if len(options) == 1 else f"{name}={text}")
    return " ".join(parts)


def _bare(kind: msgspec.inspect.Type) -> tuple[msgspec.inspect.Type, str]:
    """Return the type without its metadata, and its description."""
    if isinstance(kind, msgspec.inspect.Metadata):
        text = (kind.extra_json_schema or {}).get("description", "")
        return kind.type, text
    return kind, ""


def _option(name: str, kind: msgspec.inspect.Type, text: str) -> click.Option:
    flag = "--" + name.replace("_", "-")
    match kind:
        case msgspec.inspect.BoolType():
            return click.Option([flag, name], is_flag=True, help=text)
        case msgspec.inspect.FloatType():
            return click.Option([flag, name], type=float, metavar="NUMBER", help=text)
        case msgspec.inspect.IntType():
            return click.Option([flag, name], type=int, metavar="N", help=text)
        case msgspec.inspect.LiteralType(values=words):
            word = Word(name, tuple(str(value) for value in words))
            return click.Option([flag, name], type=word, help=text)
        case msgspec.inspect.VarTupleType() | msgspec.inspect.ListType():
            return click.Option([flag, name], multiple=True, metavar="TEXT", help=text)
        case _:
            return click.Option([flag, name], metavar="TEXT", help=text)
