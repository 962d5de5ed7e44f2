"""The fault table: one dated row per code with its source, and what a site says otherwise.

The rows come from the package (`faults.csv`, `patterns.toml`); a site may override single codes,
so that nobody has to fork a table to disagree with it.
"""

from __future__ import annotations

import csv
import re
import tomllib
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from tercio.errors import UserError, did_you_mean
from tercio.health.finding import Action, Scope, Severity

_DATE = re.compile(r"#\s*table_date:\s*(\d{4}-\d{2}-\d{2})")
_UNIT_IDS = re.compile(r"low10=0x([0-9a-fA-F]+).*low7=(\d+)")
_REASONS = re.compile(r"link-down reason ([\d,]+)")
_STATUSES = re.compile(r"errorstatus ([0-9a-fA-Fx,]+)")

# Words of the table that are resolved from the line itself; until then the line is not understood.
_OPEN_ACTIONS = {
    "use_action_in_text": Action.CONTACT_SUPPORT,
    "use_nvlink5_rule": Action.CONTACT_SUPPORT,
}
_OPEN_SEVERITIES = {"varies": Severity.WARNING}

RecordKind = Literal["first", "second", "repeat"]


class FaultRow(msgspec.Struct, frozen=True, kw_only=True):
    """What one code means and asks for."""

    fault_class: str
    code: str
    detail: str
    mnemonic: str
    meaning: str
    severity: Severity
    scope: Scope
    action: Action
    escalation: str
    source: str


class NvlinkRule(msgspec.Struct, frozen=True, kw_only=True):
    """One decoding rule of the NVLink 5 codes 144 to 150.

    Attributes:
        units: names of the hardware unit as the line prints them.
        unit_id_old, unit_id_new: low 10 bits of the first word before driver 575, low 7 since.
        statuses: values of the second word, empty where the link-down reason decides.
        reasons: bits 25 to 20 of the first word, empty where the status decides.
    """

    code: str
    units: tuple[str, ...]
    unit_id_old: int
    unit_id_new: int
    statuses: tuple[int, ...]
    reasons: tuple[int, ...]
    row: FaultRow


class LinePattern(msgspec.Struct, frozen=True, kw_only=True):
    """One log mechanism outside Xid and SXid."""

    fault_class: str
    code: str
    detail: str
    needle: str
    pattern: re.Pattern[str]
    record: RecordKind


class Override(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename={"fault_class": "class"},
):
    """A site's own verdict for one code. `reason` is shown wherever the verdict is."""

    fault_class: str
    code: str
    reason: str
    action: Action | None = None
    severity: Severity | None = None


class OverrideFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file of a site: `[[fault]]` tables."""

    fault: tuple[Override, ...]


class _PatternRow(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename={"fault_class": "class"},
):
    fault_class: str
    code: str
    needle: str
    pattern: str
    detail: str = ""
    record: RecordKind = "first"


class _PatternFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pattern: tuple[_PatternRow, ...]


class FaultTable:
    """Rows by class, code and detail. Immutable once built; `with_overrides` returns a new one."""

    __slots__ = ("date", "nvlink_rules", "patterns", "rows")

    def __init__(
        self,
        *,
        date: str,
        rows: dict[tuple[str, str, str], FaultRow],
        nvlink_rules: tuple[NvlinkRule, ...],
        patterns: tuple[LinePattern, ...],
    ) -> None:
        self.date = date
        self.rows = rows
        self.nvlink_rules = nvlink_rules
        self.patterns = patterns

    def row(self, fault_class: str, code: str, *, detail: str = "") -> FaultRow | None:
        """Return the row of a code, or None for a code that the table does not know."""
        return self.rows.get((fault_class, code, detail))

    def with_overrides(self, overrides: Iterable[Override]) -> FaultTable:
        """Return a table with a site's verdicts in place of the packaged ones.

        Raises:
            UserError: a class and code that no row has.
        """
        rows = dict(self.rows)
        for position, override in enumerate(overrides):
            keys = [k for k in rows if k[:2] == (override.fault_class, override.code)]
            if not keys:
                known = [k[1] for k in rows if k[0] == override.fault_class]
                raise UserError(
                    f"no fault {override.fault_class} {override.code} in the table of {self.date}",
                    field=f"fault[{position}].code",
                    hint=did_you_mean(override.code, known)
                    or f"classes are {', '.join(dict.fromkeys(k[0] for k in rows))}",
                )
            for key in keys:
                rows[key] = _overridden(rows[key], override)
        return FaultTable(
            date=self.date, rows=rows, nvlink_rules=self.nvlink_rules, patterns=self.patterns
        )


def _overridden(row: FaultRow, override: Override) -> FaultRow:
    return msgspec.structs.replace(
        row,
        action=override.action or row.action,
        severity=override.severity or row.severity,
        source=f"site: {override.reason}",
    )


def parse_overrides(text: str) -> tuple[Override, ...]:
    """Parse a site's override file (TOML, `[[fault]]` tables).

    Raises:
        UserError: not TOML, an unknown field, or an unknown action or severity.
    """
    try:
        tables = tomllib.loads(text)
        return msgspec.convert(tables, OverrideFile).fault
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"the override file is not TOML: {error}", field="overrides") from error
    except msgspec.ValidationError as error:
        raise UserError(
            f"the override file is not valid: {error}",
            field="overrides",
            hint=f"actions are {', '.join(Action)}; severities are {', '.join(Severity)}",
        ) from error


def parse_table(faults_csv: bytes, patterns_toml: bytes) -> FaultTable:
    """Build the table from the packaged files.

    Raises:
        ValueError: a file is not what the package ships.
    """
    text = faults_csv.decode()
    head, _, body = text.partition("\n")
    dated = _DATE.match(head)
    if dated is None:
        raise ValueError("the fault table carries no date")
    records = list(csv.DictReader(body.splitlines()))
    rows: dict[tuple[str, str, str], FaultRow] = {}
    rules: list[NvlinkRule] = []
    for record in records:
        row = _fault_row(record)
        if row.fault_class == "xid_nvlink5":
            rules.append(_nvlink_rule(row))
        else:
            rows[(row.fault_class, row.code, row.detail)] = row
    patterns = msgspec.toml.decode(patterns_toml, type=_PatternFile).pattern
    return FaultTable(
        date=dated.group(1),
        rows=rows,
        nvlink_rules=tuple(rules),
        patterns=_line_patterns(patterns, rows),
    )


def _fault_row(record: dict[str, str]) -> FaultRow:
    severity, action = record["severity"], record["action"]
    return FaultRow(
        fault_class=record["class"],
        code=record["code"],
        detail=record["detail"],
        mnemonic=record["mnemonic"],
        meaning=record["meaning"],
        severity=_OPEN_SEVERITIES.get(severity) or Severity(severity),
        scope=Scope(record["scope"]),
        action=_OPEN_ACTIONS.get(action) or Action(action),
        escalation=record["escalation"],
        source=record["source"],
    )


def _nvlink_rule(row: FaultRow) -> NvlinkRule:
    ids = _UNIT_IDS.search(row.detail)
    if ids is None:
        raise ValueError(f"NVLink 5 rule without unit ids: {row.detail!r}")
    reasons = _REASONS.search(row.detail)
    statuses = _STATUSES.search(row.detail)
    return NvlinkRule(
        code=row.code,
        units=(row.mnemonic, *row.mnemonic.split("/")),
        unit_id_old=int(ids.group(1), 16),
        unit_id_new=int(ids.group(2)),
        statuses=tuple(int(v, 16) for v in statuses.group(1).split(",")) if statuses else (),
        reasons=tuple(int(v) for v in reasons.group(1).split(",")) if reasons else (),
        row=row,
    )


def _line_patterns(
    patterns: Sequence[_PatternRow], rows: dict[tuple[str, str, str], FaultRow]
) -> tuple[LinePattern, ...]:
    for pattern in patterns:
        if (pattern.fault_class, pattern.code, pattern.detail) not in rows:
            raise ValueError(f"pattern without a fault row: {pattern.fault_class} {pattern.code}")
    return tuple(
        LinePattern(
            fault_class=p.fault_class,
            code=p.code,
            detail=p.detail,
            needle=p.needle,
            pattern=re.compile(p.pattern),
            record=p.record,
        )
        for p in patterns
    )
