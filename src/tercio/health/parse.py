"""From lines to findings: one pass, one line of memory, no line that raises.

The parser keeps state for two things only: the record in three lines by which the driver says
that a GPU fell off the bus, and the GPU identities that the log mentions.
"""

from __future__ import annotations

import re

import msgspec

from tercio.health.finding import Action, Finding, Target
from tercio.health.logline import LogLine, normalise_pci, read_line
from tercio.health.table import FaultTable, LinePattern
from tercio.health.xid import Verdict, parse_switch_daemon, parse_sxid, parse_xid

# Evidence keeps what a person reads; a line longer than this is cut.
EVIDENCE_LENGTH_MAX = 2000

_LOST_OPENING = re.compile(r"NVRM: The NVIDIA GPU (?P<bdf>[0-9a-fA-F:.]+)")
_LOST_CLOSING = "fallen off the bus"
_LOST_ONE_LINE = re.compile(
    r"NVRM: GPU (?:at )?(?:PCI:)?(?P<bdf>[0-9a-fA-F:.]{5,}?):? (?:\S+:? )?"
    r"(?:GPU )?has fallen off the bus"
)
# Other messages may come between the records; more than this many and they are not one event.
_LOST_RECORD_SPAN = 8
_IDENTITY = re.compile(
    r"NVRM: GPU at (?:PCI:)?(?P<bdf>[0-9a-fA-F:.]+): (?P<uuid>(?:GPU|MIG)-[0-9a-fA-F-]{36})"
)


class _LostRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An open record of a lost GPU: the opening line was seen, the closing one was not."""

    line: int
    pci: str
    read: LogLine
    evidence: tuple[str, ...]


class FindingParser:
    """Turns lines into findings without incidents. Feed lines in order."""

    __slots__ = ("_driver_branch", "_lost", "_table", "line_count", "uuid_by_pci")

    def __init__(self, table: FaultTable, *, driver_branch: int | None = None) -> None:
        self._table = table
        self._driver_branch = driver_branch
        self._lost: _LostRecord | None = None
        self.line_count = 0
        self.uuid_by_pci: dict[str, str] = {}

    def parse(self, raw: str) -> tuple[Finding, bool] | None:
        """Read the next line.

        Returns:
            The finding that the line completes, and whether it only repeats an event while an
            incident of its class is open; None for a line that says nothing.
        """
        self.line_count += 1
        read = read_line(raw)
        lost = self._join_lost(raw, read)
        if lost is not None:
            return lost
        verdict = self._verdict(read.text)
        if verdict is None:
            return None
        return self._finding(verdict, read, (raw,), self.line_count), verdict.repeats

    def _verdict(self, text: str) -> Verdict | None:
        if "NVRM" in text:
            if "Xid" in text:
                return parse_xid(text, self._table, driver_branch=self._driver_branch)
            self._note_identity(text)
            lost = _LOST_ONE_LINE.search(text)
            if lost is not None:
                return self._lost_verdict(normalise_pci(lost["bdf"]))
        if "SXid" in text:
            return parse_sxid(text, self._table)
        if "detected NVSwitch" in text:
            return parse_switch_daemon(text, self._table)
        for pattern in self._table.patterns:
            if pattern.needle in text:
                match = pattern.pattern.search(text)
                if match is not None:
                    return self._pattern_verdict(pattern, match)
        return None

    def _note_identity(self, text: str) -> None:
        match = _IDENTITY.search(text)
        pci = normalise_pci(match["bdf"]) if match else None
        if match is not None and pci is not None:
            self.uuid_by_pci[pci] = match["uuid"]

    def _join_lost(self, raw: str, read: LogLine) -> tuple[Finding, bool] | None:
        opening = _LOST_OPENING.search(read.text)
        if opening is not None:
            pci = normalise_pci(opening["bdf"])
            self._lost = None
            if pci is not None:
                self._lost = _LostRecord(line=self.line_count, pci=pci, read=read, evidence=())
        record = self._lost
        if record is None:
            return None
        if self.line_count - record.line >= _LOST_RECORD_SPAN:
            self._lost = None
            return None
        if "NVRM:" not in read.text or "Xid" in read.text:
            return None
        record = msgspec.structs.replace(record, evidence=(*record.evidence, raw))
        self._lost = record
        if _LOST_CLOSING not in read.text or _LOST_ONE_LINE.search(read.text):
            return None
        self._lost = None
        verdict = self._lost_verdict(record.pci)
        if verdict is None:
            return None
        return self._finding(verdict, record.read, record.evidence, record.line), True

    def _lost_verdict(self, pci: str | None) -> Verdict | None:
        """Return the verdict of Xid 79 for a text that says the same without a code."""
        row = self._table.row("xid", "79")
        if row is None:
            return None
        return Verdict(
            fault_class="xid",
            code="79",
            row=row,
            target=Target(pci=pci),
            meaning=row.meaning,
            severity=row.severity,
            action=row.action,
            repeats=True,
        )

    def _pattern_verdict(self, pattern: LinePattern, match: re.Match[str]) -> Verdict:
        row = self._table.rows[(pattern.fault_class, pattern.code, pattern.detail)]
        return Verdict(
            fault_class=pattern.fault_class,
            code=pattern.code,
            row=row,
            target=_pattern_target(match.groupdict()),
            meaning=row.meaning,
            severity=row.severity,
            action=row.action,
            continuation=pattern.record == "second",
            repeats=pattern.record == "repeat",
        )

    def _finding(
        self, verdict: Verdict, read: LogLine, raws: tuple[str, ...], line: int
    ) -> Finding:
        return Finding(
            line=line,
            line_end=self.line_count,
            at_s=read.at_s,
            stamp=read.stamp,
            fault_class=verdict.fault_class,
            code=verdict.code,
            meaning=verdict.meaning,
            severity=verdict.severity,
            scope=verdict.row.scope,
            action=Action.NONE if verdict.continuation else verdict.action,
            cause_code=verdict.cause_code,
            clears=verdict.clears,
            continuation=verdict.continuation,
            target=verdict.target,
            locus=verdict.locus,
            evidence=tuple(raw[:EVIDENCE_LENGTH_MAX] for raw in raws),
        )


def _pattern_target(groups: dict[str, str | None]) -> Target:
    pci, port, device = groups.get("pci"), groups.get("port"), groups.get("device")
    if port is not None and device is not None:
        port, device = f"{device}:{port}", None
    return Target(
        pci=normalise_pci(pci) if pci else None,
        port=port,
        link=_number(groups.get("link")),
        rank=_number(groups.get("rank")),
        pid=_number(groups.get("pid")),
        device=device,
    )


def _number(text: str | None) -> int | None:
    return int(text) if text else None


def driver_branch_of(version: str) -> int | None:
    """Return the major number of a driver version (`575.57.08`), or None where there is none."""
    head = version.strip().lower().removeprefix("r").partition(".")[0]
    return int(head) if head.isdecimal() else None
