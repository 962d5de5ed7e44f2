"""From bytes to values: bodies, query parameters and paging cursors, all checked.

Everything is refused with the field, the value and a fix. Unknown names are refused too, with
the nearest known one.
"""

from __future__ import annotations

import base64
import binascii
import re
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Final, TypeVar

import msgspec

from tercio.errors import UserError, did_you_mean
from tercio.model.units import parse_instant_s

PAGE_ROWS: Final = 100
PAGE_ROWS_MAX: Final = 1000

S = TypeVar("S", bound=msgspec.Struct)

_PLACE = re.compile(r" - at `(?:key in )?\$([^`]*)`")
_UNKNOWN = re.compile(r"unknown field `(.*)`", re.DOTALL)
_SEGMENT = re.compile(r"\.([^.\[]+)|\[([^\]]*)\]")


def decode_body(raw: bytes, kind: type[S]) -> S:
    """Decode a JSON body.

    Raises:
        UserError: `invalid`, with the field and a hint.
    """
    try:
        return msgspec.json.decode(raw or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise _refusal(str(error), kind) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        detail = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise UserError(
            f"the body is not valid JSON: {detail}", hint="send one JSON object"
        ) from None


def decode_query(pairs: Mapping[str, str], kind: type[S]) -> S:
    """Decode query parameters; numbers and truths are read from their text."""
    try:
        return msgspec.convert(pairs, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _refusal(str(error), kind, what="parameter") from None


def _refusal(text: str, kind: type[msgspec.Struct], *, what: str = "field") -> UserError:
    """Return msgspec's message as one of ours: `$.jobs[0].fil` is the field `jobs[0].fil`."""
    found = _PLACE.search(text)
    path = found.group(1) if found else ""
    message = _PLACE.sub("", text)
    field = path.lstrip(".") or None
    unknown = _UNKNOWN.search(message)
    if unknown is None:
        detail = message[:1].lower() + message[1:]
        where = f"{field}: " if field else ""
        return UserError(f"{where}{detail}", field=field, hint="GET /schema describes the request")
    name = unknown.group(1)
    known = _fields_at(kind, path)
    full = f"{field}.{name}" if field else name
    hint = did_you_mean(name, known) or f"known: {', '.join(known)}"
    if not known:
        hint = "this request takes none"
    return UserError(f"unknown {what} '{full}'", field=full, hint=hint)


def _fields_at(kind: type[msgspec.Struct], path: str) -> list[str]:
    here: object = kind
    for name, _ in _SEGMENT.findall(path):
        here = _step(here, name)
    struct = _struct_in(here)
    return [] if struct is None else [f.encode_name for f in msgspec.structs.fields(struct)]


def _step(here: object, name: str) -> object:
    """Return the type of a field, or of the elements of a container when `name` is empty."""
    if name:
        struct = _struct_in(here)
        fields = msgspec.structs.fields(struct) if struct else ()
        return next((f.type for f in fields if f.encode_name == name), None)
    if typing.get_origin(here) is Annotated:
        here = typing.get_args(here)[0]
    inner = [a for a in typing.get_args(here) if a is not Ellipsis and a is not type(None)]
    return inner[-1] if inner else None


def _struct_in(here: object) -> type[msgspec.Struct] | None:
    if isinstance(here, type) and issubclass(here, msgspec.Struct):
        return here
    if typing.get_origin(here) is Annotated:
        return _struct_in(typing.get_args(here)[0])
    if isinstance(here, types.UnionType) or typing.get_origin(here) is typing.Union:
        return next(filter(None, map(_struct_in, typing.get_args(here))), None)
    return None


def read_instant_s(text: str | None, *, field: str) -> float | None:
    """Return an instant of a query: RFC 3339, or seconds since the epoch; None stays None."""
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        return parse_instant_s(text, field=field)
    return parse_instant_s(seconds, field=field)


def make_cursor(kind: str, key: str) -> str:
    """Return the opaque cursor of the page after the row with this key."""
    return base64.urlsafe_b64encode(f"{kind}:{key}".encode()).decode().rstrip("=")


def read_cursor(kind: str, cursor: str | None) -> str | None:
    """Return the key of the last row of the page before, or None for the first page."""
    if cursor is None:
        return None
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        made_for, _, key = (
            base64.b64decode(padded, altchars=b"-_", validate=True).decode().partition(":")
        )
    except (binascii.Error, ValueError):
        made_for, key = "", ""
    if made_for != kind or not key:
        raise UserError(
            f"after: {cursor!r} is not a cursor of this list",
            field="after",
            hint="pass `next` of the page before, unchanged, or leave it out",
        )
    return key
