"""How answers are printed: tables for people, and machine formats that are the API's own bytes.

`json` prints the body as the server sent it; `jsonl` one row of it a line; `csv` base units and
absolute times; `name` what other commands take as an argument. Tables are cut to the width of a
terminal, never when stdout is no terminal.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

import click
import msgspec

from tercio.cli.human import NOTHING, STATE_STYLE
from tercio.cli.session import Session
from tercio.cli.verbs import Word
from tercio.errors import UserError, did_you_mean

Row = TypeVar("Row")
Function = TypeVar("Function", bound=Callable[..., Any])

FORMATS: Final = ("table", "wide", "json", "jsonl", "csv", "name")
_FLEXIBLE_GOOD: Final = 40
"""Characters of prose that are worth leaving out spare columns for."""
_FLEXIBLE_MIN: Final = 12
"""Fewest characters that the cut column keeps; below it a table stands in parts."""
_PROSE_MIN: Final = 24
"""The same of a first column, which tells the rows apart; below it no line is broken either."""


class Output(NamedTuple):
    """What the user asked for with `-o`, `--fields` and `--no-header`."""

    format: str = "table"
    fields: tuple[str, ...] = ()
    has_header: bool = True

    @property
    def is_table(self) -> bool:
        """Whether a person reads it."""
        return self.format in ("table", "wide")


class Column(NamedTuple, Generic[Row]):
    """One column of a table.

    Attributes:
        header: its title.
        field: the field of the body it shows, also its name for `--fields` and csv.
        text: what a person reads.
        style: colour of a cell by row, or None.
        is_wide: shown by `-o wide` only.
        is_right: aligned to the right.
        is_flexible: cut when the terminal is narrow.
        spare: left out of a narrow terminal before those with a smaller number; 0 never is.
    """

    header: str
    field: str
    text: Callable[[Row], str]
    style: Callable[[Row], str] | None = None
    is_wide: bool = False
    is_right: bool = False
    is_flexible: bool = False
    spare: int = 0


class Listing(NamedTuple, Generic[Row]):
    """How rows of one kind are printed.

    Attributes:
        columns: from left to right.
        row_type: the struct each row is decoded to.
        name: what `-o name` prints for a row.
        empty: note for a person when there are no rows.
    """

    columns: Sequence[Column[Row]]
    row_type: type[Row]
    name: Callable[[Row], str]
    empty: str


def output_options(function: Function) -> Function:
    """Add `-o`, `--fields` and `--no-header` to a command, which receives them as `output`."""

    @functools.wraps(function)
    def with_output(
        *args: Any, output_format: str, fields: str | None, no_header: bool, **kwargs: Any
    ) -> Any:
        names = () if fields is None else tuple(f.strip() for f in fields.split(","))
        output = Output(format=output_format, fields=names, has_header=not no_header)
        return function(*args, output=output, **kwargs)

    for option in (
        click.option("--no-header", is_flag=True, help="No header line."),
        click.option(
            "--fields",
            metavar="A,B",
            help="Only these fields, in this order; an empty list names all.",
        ),
        click.option(
            "-o",
            "--output",
            "output_format",
            type=Word("format", FORMATS),
            metavar="FORMAT",
            default="table",
            help=f"{', '.join(FORMATS)}; see 'tercio help output'.",
        ),
    ):
        with_output = option(with_output)
    return with_output  # type: ignore[return-value]


def write(text: str) -> None:
    """Write one line of output on stdout."""
    sys.stdout.write(text + "\n")


def write_body(body: bytes) -> None:
    """Write an API body as it is; a line end is added where it has none."""
    sys.stdout.flush()
    sys.stdout.buffer.write(body if body.endswith(b"\n") else body + b"\n")
    sys.stdout.buffer.flush()


def show_list(
    session: Session, output: Output, listing: Listing[Row], pages: Sequence[bytes]
) -> None:
    """Print a list that arrived in one or more pages."""
    if output.format == "json" and not output.fields:
        write_body(pages[0] if len(pages) == 1 else _join(pages))
        return
    raw_rows = [raw for page in pages for raw in msgspec.json.decode(page, type=_Page).rows]
    if output.format == "jsonl" and not output.fields:
        for raw in raw_rows:
            write_body(bytes(raw))
        return
    show_rows(session, output, listing, raw_rows)


def show_rows(
    session: Session, output: Output, listing: Listing[Row], raw_rows: Sequence[msgspec.Raw]
) -> None:
    """Print rows that are still JSON, as a table, csv, names or chosen fields."""
    decoder = msgspec.json.Decoder(listing.row_type)
    if output.format == "name":
        for raw in raw_rows:
            write(listing.name(decoder.decode(raw)))
        return
    if output.format in ("json", "jsonl", "csv"):
        names = _machine_fields(output, listing, raw_rows)
        _write_machine(output, names, [msgspec.json.decode(raw) for raw in raw_rows])
        return
    rows = [decoder.decode(raw) for raw in raw_rows]
    if not rows:
        session.note(listing.empty)
        return
    columns: Sequence[Column[Row]] = _pick(output, listing, raw_rows)
    print_table(session, columns, rows, has_header=output.has_header)


def show_one(
    session: Session,
    output: Output,
    listing: Listing[Row],
    body: bytes,
    detail: Callable[[Row], None],
) -> None:
    """Print one object: `detail` for people, else the same formats as a list of one."""
    if output.format in ("json", "jsonl") and not output.fields:
        write_body(body)
    elif output.is_table and not output.fields:
        detail(msgspec.json.decode(body, type=listing.row_type))
    else:
        show_rows(session, output, listing, [msgspec.Raw(body)])


def print_table(
    session: Session,
    columns: Sequence[Column[Row]],
    rows: Sequence[Row],
    *,
    has_header: bool = True,
    indent: str = "",
) -> None:
    """Print rows in aligned columns; on a terminal, no wider than it."""
    width = session.width()
    room = None if width is None else width - len(indent)
    for line in table_lines(session, columns, rows, width=room, has_header=has_header):
        write(f"{indent}{line}" if line else "")


def table_lines(
    session: Session,
    columns: Sequence[Column[Row]],
    rows: Sequence[Row],
    *,
    width: int | None,
    has_header: bool = True,
) -> list[str]:
    """Return the lines of a table.

    Within `width` characters the prose of the flexible column matters most: spare columns are
    left out until it is readable, then it is cut. What still does not fit stands below, with an
    empty line between. Without a width nothing is left out or cut.
    """
    cells = [
        [_cell(column, row, has_symbols=width is not None) for column in columns] for row in rows
    ]
    widths = [
        max([len(column.header) if has_header else 0, *(len(line[i]) for line in cells)])
        for i, column in enumerate(columns)
    ]
    lines: list[str] = []
    for kept in _layout(columns, widths, width):
        lines += [""] if lines else []
        if has_header:
            titles = [
                _fit(columns[i].header, widths[i], is_right=columns[i].is_right) for i in kept
            ]
            lines.append(session.paint("  ".join(titles).rstrip(), "bold"))
        for row, line in zip(rows, cells, strict=True):
            texts = []
            for i in kept:
                text = _fit(line[i], widths[i], is_right=columns[i].is_right)
                style = columns[i].style
                text = text.rstrip() if i == kept[-1] else text
                texts.append(session.paint(text, style(row) if style else ""))
            lines.append("  ".join(texts).rstrip())
    return lines


def print_facts(session: Session, facts: Iterable[tuple[str, str]], *, indent: str = "") -> None:
    """Print `name  value` lines, names aligned; facts without a value are left out.

    On a terminal prose goes on under its own column; elsewhere a value is never broken.
    """
    kept = [(name, value) for name, value in facts if value and value != NOTHING]
    width = max((len(name) for name, _ in kept), default=0)
    columns = session.width()
    room = None if columns is None else columns - len(indent) - width - 2
    for name, value in kept:
        first, *rest = [part for line in value.splitlines() for part in _wrapped(line, room)]
        write(f"{indent}{session.paint(name.ljust(width), 'dim')}  {first}")
        for line in rest:
            write(f"{indent}{'':{width}}  {line}")


def _wrapped(line: str, room: int | None) -> list[str]:
    """Break a line between words to fit; what colours it does not count."""
    if room is None or room < _PROSE_MIN or len(click.unstyle(line)) <= room:
        return [line]
    lines: list[str] = []
    for word in line.split(" "):
        if lines and len(click.unstyle(lines[-1])) + 1 + len(click.unstyle(word)) <= room:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def state_text(session: Session, state: str) -> str:
    """Return a state word with its symbol and colour, for prose."""
    symbol, style = STATE_STYLE.get(state, ("", ""))
    word = f"{symbol} {state}" if symbol and _speaks_unicode() else state
    return session.paint(word, style)


def state_column(field: str, state: Callable[[Row], str]) -> Column[Row]:
    """Return the column of a state word, with symbol on terminals and colour."""
    return Column("STATE", field, state, style=lambda row: STATE_STYLE.get(state(row), ("", ""))[1])


class _Page(msgspec.Struct, frozen=True):
    """Any list body: its rows, not yet decoded."""

    rows: tuple[msgspec.Raw, ...] = ()
    next: str | None = None


def next_cursor(page: bytes) -> str | None:
    """Return the cursor of the following page, or None on the last."""
    return msgspec.json.decode(page, type=_Page).next


def has_rows(page: bytes) -> bool:
    """Whether a list body has any row."""
    return bool(msgspec.json.decode(page, type=_Page).rows)


def _join(pages: Sequence[bytes]) -> bytes:
    """Make one list body of several pages: the first one's fields, everybody's rows."""
    rows = b",".join(
        bytes(raw) for page in pages for raw in msgspec.json.decode(page, type=_Page).rows
    )
    fields = msgspec.json.decode(pages[0], type=dict[str, msgspec.Raw])
    fields["rows"], fields["next"] = msgspec.Raw(b"[" + rows + b"]"), msgspec.Raw(b"null")
    return msgspec.json.encode(fields)


def _pick(
    output: Output, listing: Listing[Row], raw_rows: Sequence[msgspec.Raw]
) -> list[Column[Row]]:
    """Return the columns of a table: the usual ones, or those of `--fields`."""
    if not output.fields:
        return [c for c in listing.columns if output.format == "wide" or not c.is_wide]
    known = {column.field: column for column in listing.columns}
    _check_fields(output, listing, raw_rows)
    return [known.get(name) or _plain_column(name) for name in output.fields]


def _plain_column(field: str) -> Column[Any]:
    return Column(
        field.upper(), field, lambda row: machine_text(_field(msgspec.to_builtins(row), field))
    )


def _machine_fields(
    output: Output, listing: Listing[Row], raw_rows: Sequence[msgspec.Raw]
) -> tuple[str, ...]:
    if output.fields:
        _check_fields(output, listing, raw_rows)
        return output.fields
    return tuple(dict.fromkeys(column.field for column in listing.columns))


def _check_fields(output: Output, listing: Listing[Any], raw_rows: Sequence[msgspec.Raw]) -> None:
    """Refuse a field that neither the struct nor a row has, and name the nearest."""
    known = dict.fromkeys(column.field for column in listing.columns)
    known.update(dict.fromkeys(listing.row_type.__struct_fields__))
    for raw in raw_rows[:1]:
        known.update(dict.fromkeys(msgspec.json.decode(raw, type=dict[str, msgspec.Raw])))
    for name in output.fields:
        if name not in known and name.partition(".")[0] not in known:
            hint = did_you_mean(name, known) if name else None
            raise UserError(
                f"--fields: '{name}' is not a field" if name else "--fields names no field",
                hint=hint or f"fields: {', '.join(known)}",
            )


def _write_machine(output: Output, names: Sequence[str], rows: Sequence[Any]) -> None:
    picked = [{name: _field(row, name) for name in names} for row in rows]
    if output.format == "json":
        write_body(msgspec.json.encode(picked))
    elif output.format == "jsonl":
        for row in picked:
            write_body(msgspec.json.encode(row))
    else:
        import csv

        writer = csv.writer(sys.stdout, lineterminator="\n")
        if output.has_header:
            writer.writerow(names)
        writer.writerows([[machine_text(row[name]) for name in names] for row in picked])


def _field(row: Any, path: str) -> Any:
    """Return the value at a dotted path, None where there is none."""
    value = row
    for part in path.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value


def machine_text(value: Any) -> str:
    """Print a value of a body without changing it: absolute, base units, JSON inside."""
    match value:
        case None:
            return ""
        case str():
            return value
        case _:
            return msgspec.json.encode(value).decode()


def _cell(column: Column[Row], row: Row, *, has_symbols: bool) -> str:
    # A control character in a name or message must not reach the terminal.
    text = "".join(c if c.isprintable() else "�" for c in column.text(row).replace("\n", " "))
    if has_symbols and column.header == "STATE" and text in STATE_STYLE and _speaks_unicode():
        return f"{STATE_STYLE[text][0]} {text}"
    return text


def _layout(
    columns: Sequence[Column[Any]], widths: list[int], width: int | None
) -> list[list[int]]:
    """Return the columns that are kept, and shrink the flexible one to what is left.

    Where even that does not fit, all columns are kept, and the table stands in several parts one
    below the other, each with the first column.
    """
    every = list(range(len(columns)))
    if width is None:
        return [every]
    flexible = next((i for i in reversed(every) if columns[i].is_flexible), None)
    kept = _without_spare(columns, widths, width, flexible)
    excess = _length(kept, widths) - width
    if excess <= 0:
        return [kept]
    if flexible is not None:
        least = min(widths[flexible], _FLEXIBLE_MIN if flexible else _PROSE_MIN)
        if widths[flexible] - excess >= least:
            widths[flexible] -= excess
            return [kept]
        # Beside the first column; as that itself it stands in every part.
        room = width // 3 if flexible == 0 else width - widths[0] - 2
        widths[flexible] = max(least, min(widths[flexible], room))
    return _parts(every, widths, width)


def _without_spare(
    columns: Sequence[Column[Any]], widths: Sequence[int], width: int, flexible: int | None
) -> list[int]:
    """Leave out spare columns until the prose is readable; without any, until the table fits."""
    kept = list(range(len(columns)))
    good = 0 if flexible is None else min(widths[flexible], _FLEXIBLE_GOOD)
    can_give = 0 if flexible is None else widths[flexible] - good
    for i in sorted((i for i in kept if columns[i].spare), key=lambda i: -columns[i].spare):
        if _length(kept, widths) - width > can_give:
            kept.remove(i)
    return kept


def _parts(kept: Sequence[int], widths: Sequence[int], width: int) -> list[list[int]]:
    first, *others = kept
    parts = [[first]]
    for i in others:
        if len(parts[-1]) > 1 and _length([*parts[-1], i], widths) > width:
            parts.append([first])
        parts[-1].append(i)
    return parts


def _length(kept: Sequence[int], widths: Sequence[int]) -> int:
    return sum(widths[i] for i in kept) + 2 * (len(kept) - 1)


def _fit(text: str, width: int, *, is_right: bool) -> str:
    if len(text) > width:
        text = text[: width - 1] + ("…" if _speaks_unicode() else ".")
    return text.rjust(width) if is_right else text.ljust(width)


def _speaks_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
