"""The JSON shapes of a classification."""

from __future__ import annotations

import msgspec

from tercio.health.finding import Action, Classification, Finding, Incident, Severity, Target

SCHEMA = "tercio/v1"


class TargetBody(msgspec.Struct, frozen=True, kw_only=True):
    """Where a fault sits; unknown parts are null."""

    pci: str | None
    gi: int | None
    link: int | None
    port: str | None
    rank: int | None
    pid: int | None


class FindingBody(msgspec.Struct, frozen=True, kw_only=True, rename={"fault_class": "class"}):
    """One finding; `incident` is null only for a record whose event was not seen."""

    line: int
    line_end: int
    at_s: float | None
    fault_class: str
    code: str
    meaning: str
    severity: Severity
    scope: str
    action: Action
    cause_code: str | None
    clears: bool
    continuation: bool
    target: TargetBody
    incident: int | None
    evidence: tuple[str, ...]


class IncidentBody(msgspec.Struct, frozen=True, kw_only=True):
    """One incident; `findings` are positions in the list of findings."""

    id: int
    target: TargetBody
    root_line: int
    severity: Severity
    action: Action
    findings: tuple[int, ...]


class ClassificationBody(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `tercio classify -o json`."""

    schema: str
    kind: str
    table_date: str
    lines: int
    findings: tuple[FindingBody, ...]
    incidents: tuple[IncidentBody, ...]


def classification_body(classification: Classification) -> ClassificationBody:
    """Return the JSON shape of a whole classification."""
    return ClassificationBody(
        schema=SCHEMA,
        kind="Classification",
        table_date=classification.table_date,
        lines=classification.line_count,
        findings=tuple(finding_body(f) for f in classification.findings),
        incidents=tuple(_incident_body(i) for i in classification.incidents),
    )


def finding_body(finding: Finding) -> FindingBody:
    """Return the JSON shape of one finding."""
    return FindingBody(
        line=finding.line,
        line_end=finding.line_end,
        at_s=finding.at_s,
        fault_class=finding.fault_class,
        code=finding.code,
        meaning=finding.meaning,
        severity=finding.severity,
        scope=finding.scope.value,
        action=finding.action,
        cause_code=finding.cause_code,
        clears=finding.clears,
        continuation=finding.continuation,
        target=_target_body(finding.target),
        incident=finding.incident,
        evidence=finding.evidence,
    )


def _incident_body(incident: Incident) -> IncidentBody:
    return IncidentBody(
        id=incident.id,
        target=_target_body(incident.target),
        root_line=incident.root_line,
        severity=incident.severity,
        action=incident.action,
        findings=incident.findings,
    )


def _target_body(target: Target) -> TargetBody:
    return TargetBody(
        pci=target.pci,
        gi=target.gi,
        link=target.link,
        port=target.port,
        rank=target.rank,
        pid=target.pid,
    )
