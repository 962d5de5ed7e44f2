"""Text of a trace, its rows, and the one way in which a reader finds fault with them.

A value that cannot be read is a fault that names file, line, column and value. A row that can be
read but not replayed (a job that never started) is dropped, and the reason counted: a reader
never loses a row silently.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from tercio.errors import UserError

NUMBER_MAX: Final = 1e13
"""Above it a number of seconds, bytes per KiB or devices is a mistake of the file."""
DEVICES_MAX: Final = 1_000_000


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a trace: its name, for messages, and its text."""

    name: str
    text: str


class RowFault(Exception):
    """One row cannot be read; `Tally.fault` turns it into an error or a dropped row."""

    def __init__(self, row: Row, field: str, value: str, expected: str) -> None:
        super().__init__(expected)
        self.row = row
        self.field = field
        self.value = value
        self.expected = expected


class Row:
    """One row: named columns, where it stands, and typed access that names what is wrong."""

    __slots__ = ("line", "source", "values")

    def __init__(self, source: str, line: int, values: Mapping[str, str]) -> None:
        self.source = source
        self.line = line
        self.values = values

    def text(self, field: str) -> str:
        """Return the trimmed text of a column; empty where the trace has no such column."""
        return self.values.get(field, "").strip()

    def fault(self, field: str, expected: str) -> RowFault:
        """Return the fault of one column."""
        return RowFault(self, field, self.values.get(field, ""), expected)

    def number(self, field: str, *, low: float = 0.0) -> float:
        """Return a finite number of at least `low`."""
        text = self.text(field)
        try:
            value = float(text)
        except ValueError:
            raise self.fault(field, "a number") from None
        if not math.isfinite(value) or abs(value) > NUMBER_MAX or "_" in text:
            raise self.fault(field, "a finite number")
        if value < low:
            raise self.fault(field, f"a number of at least {low:g}")
        return value

    def whole(self, field: str, *, low: int = 0, high: int = DEVICES_MAX) -> int:
        """Return a whole number from `low` to `high`; `8.0` is 8."""
        value = self.number(field, low=low)
        if value != int(value):
            raise self.fault(field, "a whole number")
        if value > high:
            raise self.fault(field, f"a whole number of at most {high}")
        return int(value)


class Tally:
    """Counts what a reader leaves out or guesses, by reason, in the order of first meeting."""

    def __init__(self, *, is_lenient: bool = False) -> None:
        self.is_lenient = is_lenient
        self._dropped: dict[str, int] = {}
        self._noted: dict[str, int] = {}

    def drop(self, reason: str, count: int = 1) -> None:
        """Count rows that are left out."""
        self._dropped[reason] = self._dropped.get(reason, 0) + count

    def note(self, reason: str, count: int = 1) -> None:
        """Count rows that are kept, but not exactly as recorded."""
        self._noted[reason] = self._noted.get(reason, 0) + count

    def fault(self, fault: RowFault) -> None:
        """Refuse the trace for one unreadable value, or count it when told to be lenient."""
        if self.is_lenient:
            self.drop(f"unreadable {fault.field}")
            return
        value = fault.value if len(fault.value) <= 80 else fault.value[:77] + "..."
        raise UserError(
            f"{fault.row.source}:{fault.row.line}: {fault.field}: {value!r} is not"
            f" {fault.expected}",
            field=fault.field,
            hint="mend the line, or leave such lines out with --skip-bad-lines",
        )

    @property
    def dropped(self) -> int:
        """Rows left out so far."""
        return sum(self._dropped.values())

    def warnings(self) -> tuple[str, ...]:
        """Return one sentence for each reason."""
        left_out = [
            f"left out {n:,} row{'' if n == 1 else 's'}: {reason}"
            for reason, n in self._dropped.items()
        ]
        noted = [f"{n:,} job{'' if n == 1 else 's'}: {why}" for why, n in self._noted.items()]
        return (*left_out, *noted)


def table_rows(
    source: Source, tally: Tally, *, needed: Sequence[str], delimiter: str = ","
) -> Iterator[Row]:
    """Yield the rows of a table whose first line names the columns.

    Args:
        source: the file.
        tally: takes the faults of rows with too many or too few columns.
        needed: columns without which the table cannot be read.
        delimiter: between columns; `|` and tab are read without quoting.

    Raises:
        UserError: a needed column is missing, or a row is malformed and the tally is strict.
    """
    lines = _split(source, delimiter)
    try:
        header = [name.strip() for name in next(lines)[1]]
    except StopIteration:
        raise UserError(f"{source.name} is empty", field="trace") from None
    if header:
        header[0] = header[0].removeprefix("\ufeff")
    if missing := [name for name in needed if name not in header]:
        raise UserError(
            f"{source.name}:1: no column {', '.join(missing)}",
            field=missing[0],
            hint=f"columns: {', '.join(header)[:200]}",
        )
    width = len(header)
    for line, values in lines:
        if not values or (len(values) == 1 and not values[0].strip()):
            continue
        row = Row(source.name, line, dict(zip(header, values, strict=False)))
        if len(values) != width:
            joined = Row(source.name, line, {"line": delimiter.join(values)})
            tally.fault(joined.fault("line", f"a row of {width} columns"))
            continue
        yield row


def _split(source: Source, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    if delimiter != ",":
        for line, text in enumerate(source.text.splitlines(), 1):
            yield line, text.split(delimiter)
        return
    reader = csv.reader(io.StringIO(source.text, newline=""), strict=False)
    try:
        for values in reader:
            yield reader.line_num, values
    except csv.Error as error:
        raise UserError(
            f"{source.name}:{reader.line_num}: not a table of commas: {error}", field="line"
        ) from None
