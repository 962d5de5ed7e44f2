"""Bursts to incidents: one cause on one target is one thing to act on.

One fault prints tens of lines with two to four codes (13 then 109; 62 then 45; a switch fault,
then 74, then 45). The most severe code that is not a mere consequence is kept as the root.
"""

from __future__ import annotations

import msgspec

from tercio.health.finding import Action, Finding, Incident, Severity, Target

# Seconds of silence that end a burst, by the code that opened it: NVSentinel's windows for 13 and
# 31; 60 s is the span in which a 45 belongs to the Xid before it (NVIDIA's catalogue).
QUIET_S_BY_CODE = {"13": 15.0, "31": 180.0}
QUIET_S = 60.0

# Classes whose lines come from many ranks or lines of one event: one incident for all of them.
_SHARED_CLASSES = {"nccl": "job", "torch": "job", "oom": "oom"}
_CONSEQUENCES = frozenset({Action.FOLLOW_OTHER_XID})


class _Open:
    """An incident that still takes findings. Times are on the log's own running clock."""

    __slots__ = ("findings", "id", "indices", "key", "last_s", "shut")

    def __init__(self, *, id: int, key: tuple[str, ...]) -> None:
        self.id = id
        self.key = key
        self.findings: list[Finding] = []
        self.indices: list[int] = []
        self.last_s = 0.0
        self.shut = False

    def has(self, fault_class: str, *codes: str) -> bool:
        return any(f.fault_class == fault_class and f.code in codes for f in self.findings)


class IncidentLog:
    """Groups findings in the order of the log.

    The running clock adds up the spans between stamps of one clock. A line without a stamp counts
    as simultaneous with the one before; a clock that runs backwards is a reboot and ends every
    burst.
    """

    __slots__ = ("_incidents", "_now_s", "_stamp", "findings")

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self._incidents: list[_Open] = []
        self._now_s = 0.0
        self._stamp: tuple[str, float] | None = None

    def add(self, finding: Finding, *, repeats: bool = False) -> Finding:
        """Place a finding and return it with its incident.

        Args:
            finding: the next finding of the log.
            repeats: it only repeats an event while an incident of its class is open.
        """
        self._advance(finding.stamp)
        key = _key(finding)
        home = self._home(finding, key)
        if repeats and home is not None and home.has(finding.fault_class, finding.code):
            finding = msgspec.structs.replace(finding, continuation=True, action=Action.NONE)
        if home is None and not finding.continuation:
            home = _Open(id=len(self._incidents), key=key)
            self._incidents.append(home)
        if home is not None:
            finding = self._placed(finding, home)
        self.findings.append(finding)
        return finding

    def _placed(self, finding: Finding, home: _Open) -> Finding:
        if finding.action in _CONSEQUENCES and finding.cause_code is None:
            causes = [f for f in home.findings if f.action not in _CONSEQUENCES]
            cause = _worst(causes)
            if cause is not None and cause.fault_class in ("xid", "sxid"):
                finding = msgspec.structs.replace(finding, cause_code=cause.code)
        finding = msgspec.structs.replace(finding, incident=home.id)
        home.findings.append(finding)
        home.indices.append(len(self.findings))
        home.last_s = self._now_s
        home.shut = home.shut or finding.clears
        return finding

    def _advance(self, stamp: tuple[str, float] | None) -> None:
        if stamp is None:
            return
        if self._stamp is not None and self._stamp[0] == stamp[0]:
            span_s = stamp[1] - self._stamp[1]
            # Records of several processors come slightly out of order; a reboot does not.
            if span_s >= 0:
                self._now_s += span_s
            elif span_s < -QUIET_S:
                self._shut_all()
        self._stamp = stamp

    def _shut_all(self) -> None:
        for incident in self._incidents:
            incident.shut = True

    def _home(self, finding: Finding, key: tuple[str, ...]) -> _Open | None:
        for incident in reversed(self._incidents):
            if incident.shut or self._now_s - incident.last_s > _quiet_s(incident):
                continue
            if incident.key == key or _follows(incident, finding):
                return incident
        return None

    def incidents(self) -> tuple[Incident, ...]:
        """Return every incident so far, in the order in which they began."""
        return tuple(_closed(incident) for incident in self._incidents)


def _quiet_s(incident: _Open) -> float:
    return max(QUIET_S_BY_CODE.get(f.code, QUIET_S) for f in incident.findings)


def _key(finding: Finding) -> tuple[str, ...]:
    shared = _SHARED_CLASSES.get(finding.fault_class)
    if shared is not None:
        return (shared,)
    target = finding.target
    if target.pci is not None:
        return ("pci", target.pci.partition(".")[0])
    return (finding.fault_class, target.port or target.device or "")


def _follows(incident: _Open, finding: Finding) -> bool:
    """Return whether a finding on another target is a known consequence of an open incident."""
    match finding.fault_class, finding.code:
        case "xid", "74" | "45":
            # A fatal switch fault shows as 74 on the GPU behind the port (Fabric Manager guide).
            return any(
                f.fault_class == "sxid" and f.severity is Severity.FATAL for f in incident.findings
            )
        case "xid", "79":
            # The port above a GPU reports the broken link first (Surprise Down).
            return incident.has("pcie", "aer_fatal")
        case "amd", "amd_reset_ok":
            return finding.target.pci is None and incident.has("amd", "amd_reset", "amd_ras_fatal")
        case _:
            return False


def _worst(findings: list[Finding]) -> Finding | None:
    return max(findings, key=lambda f: (f.severity.rank, -f.line), default=None)


def _closed(incident: _Open) -> Incident:
    counted = [f for f in incident.findings if not f.continuation] or incident.findings
    verdicts = [f for f in counted if not f.clears and f.code != "154"]
    causes = [f for f in verdicts if f.action not in _CONSEQUENCES]
    root = _worst(causes) or _worst(verdicts) or counted[0]
    cleared = any(f.clears for f in incident.findings)
    return Incident(
        id=incident.id,
        target=_target(incident, root),
        root_line=root.line,
        root_class=root.fault_class,
        root_code=root.code,
        severity=max((f.severity for f in counted), key=lambda s: s.rank),
        action=Action.NONE if cleared else _action(incident, counted, root),
        cleared=cleared,
        at_s=incident.findings[0].at_s,
        findings=tuple(incident.indices),
    )


def _target(incident: _Open, root: Finding) -> Target:
    """Return the GPU where the incident names one: a port or a switch is only the way to it."""
    if root.fault_class == "pcie":
        gpus = [f.target for f in incident.findings if f.fault_class == "xid"]
        return gpus[0] if gpus else root.target
    return root.target


def _action(incident: _Open, counted: list[Finding], root: Finding) -> Action:
    spoken = [f for f in counted if f.code == "154" and f.action is not Action.CONTACT_SUPPORT]
    if spoken:
        # The driver's own recovery action is better informed than any table.
        return spoken[-1].action
    if incident.has("xid", "48"):
        # NVIDIA's workflow for 48: the companion code says how far the damage goes.
        if incident.has("xid", "63", "64", "95"):
            return Action.DRAIN_AND_RESET
        if incident.has("xid", "94"):
            return Action.RESET_GPU_WHEN_IDLE
    demanding = max((f.action for f in counted), key=lambda a: a.rank)
    if demanding is Action.FOLLOW_OTHER_XID:
        return _alone(root)
    return demanding


def _alone(root: Finding) -> Action:
    """Return what a consequence asks for when its cause was not seen."""
    if root.code in ("171", "172"):
        return Action.RESET_GPU
    return Action.RESTART_APP
