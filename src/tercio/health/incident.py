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
    """An incident that still takes findings. Times are on the log's own running clock.

    What later findings ask of it is kept as they come, since a burst may have thousands of them.
    """

    __slots__ = ("cause", "codes", "findings", "id", "indices", "keys", "last_s", "quiet_s", "shut")

    def __init__(self, *, id: int, key: tuple[str, ...]) -> None:
        self.id = id
        # The targets that the incident has reached; a consequence on another one adds its own.
        self.keys = [key]
        self.findings: list[Finding] = []
        self.indices: list[int] = []
        # Class and code of every finding, with the worst severity it came with.
        self.codes: dict[tuple[str, str], Severity] = {}
        self.cause: Finding | None = None
        self.last_s = 0.0
        self.quiet_s = 0.0
        self.shut = False

    def add(self, finding: Finding, *, index: int, now_s: float) -> None:
        self.findings.append(finding)
        self.indices.append(index)
        key = (finding.fault_class, finding.code)
        if finding.severity.rank >= self.codes.get(key, Severity.NOTE).rank:
            self.codes[key] = finding.severity
        is_cause = finding.action not in _CONSEQUENCES and not finding.continuation
        if is_cause and (self.cause is None or finding.severity.rank > self.cause.severity.rank):
            self.cause = finding
        self.last_s = now_s
        self.quiet_s = max(self.quiet_s, QUIET_S_BY_CODE.get(finding.code, QUIET_S))
        self.shut = self.shut or finding.clears

    def has(self, fault_class: str, *codes: str) -> bool:
        return any((fault_class, code) in self.codes for code in codes)


class IncidentLog:
    """Groups findings in the order of the log.

    The running clock adds up the spans between stamps of one clock. A line without a stamp counts
    as simultaneous with the one before; a clock that runs backwards is a reboot and ends every
    burst.
    """

    __slots__ = ("_incidents", "_live", "_now_s", "_stamp", "findings")

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self._incidents: list[_Open] = []
        self._live: list[_Open] = []
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
            self._live.append(home)
        if home is not None:
            if key not in home.keys:
                home.keys.append(key)
            finding = self._placed(finding, home)
        self.findings.append(finding)
        return finding

    def _placed(self, finding: Finding, home: _Open) -> Finding:
        cause = home.cause
        if (
            finding.action in _CONSEQUENCES
            and finding.cause_code is None
            and cause is not None
            and cause.fault_class in ("xid", "sxid")
        ):
            finding = msgspec.structs.replace(finding, cause_code=cause.code)
        finding = msgspec.structs.replace(finding, incident=home.id)
        home.add(finding, index=len(self.findings), now_s=self._now_s)
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
                self._live = []
        self._stamp = stamp

    def _home(self, finding: Finding, key: tuple[str, ...]) -> _Open | None:
        """Return the latest open incident that the finding belongs to, or None."""
        self._live = [
            incident
            for incident in self._live
            if not incident.shut and self._now_s - incident.last_s <= incident.quiet_s
        ]
        for incident in reversed(self._live):
            if key in incident.keys or _follows(incident, finding):
                return incident
        return None

    def incidents(self) -> tuple[Incident, ...]:
        """Return every incident so far, in the order in which they began."""
        return tuple(_closed(incident) for incident in self._incidents)


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
                fault_class == "sxid" and severity is Severity.FATAL
                for (fault_class, _), severity in incident.codes.items()
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
