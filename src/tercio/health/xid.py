"""The two families of codes that NVIDIA's driver prints: Xid of a GPU, SXid of an NVSwitch.

The verdict is the row of the fault table, except where the line itself knows better: the recovery
action of 154, the unit and status of the NVLink 5 codes, the reset flags of 94, the register
words of 74.
"""

from __future__ import annotations

import re

import msgspec

from tercio.health.finding import Action, Severity, Target
from tercio.health.logline import normalise_pci
from tercio.health.table import FaultRow, FaultTable, NvlinkRule

_XID = re.compile(
    r"NVRM:\s*Xid\s*\((?:PCI:)?(?P<bdf>(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}"
    r"(?:\.[0-9a-fA-F])?)(?:\s+GPU-I:(?P<gi>[0-9a-fA-F]+))?\):\s*(?P<code>\d{1,6})(?=,|$|\s)"
)
_SXID = re.compile(
    r"(?P<switch>nvidia-nvswitch\d*|NVSwitch\d*)?:?\s*SXid\s*\((?:PCI:)?(?P<bdf>[0-9a-fA-F:.]+)\):"
    r"\s*(?P<code>\d{1,6})(?=,|$|\s)"
)
# The fabric manager's own log says the same in other words.
_SWITCH_DAEMON = re.compile(
    r"detected NVSwitch (?P<word>non-fatal|fatal) error (?P<code>\d{4,6}) on .*"
    r"pci bus id (?P<bdf>[0-9a-fA-F:.]+)(?:.*\bport (?P<port>\d+))?",
    re.IGNORECASE,
)
_SXID_LATER_RECORD = re.compile(r"^\s*(?:Severity\s+\d|Data\s*[{\[(]|SOE HALT data\b)")
_PID = re.compile(r"\bpid='?(\d+)")
_LINK = re.compile(r"\b[Ll]ink\s+(\d{1,3})\b")
_NVLINK5 = re.compile(
    r"(?P<unit>[A-Z][A-Z0-9_/]+)\s+(?P<word>(?:Link )?(?:Non-?fatal|Fatal))\b"
    r"(?:.*?\((?P<words>0x[0-9a-fA-F]+(?:\s+0x[0-9a-fA-F]+)*))?",
    re.IGNORECASE,
)
_RECOVERY = re.compile(
    r"recovery action changed from 0x[0-9a-fA-F]+ \([^)]*\) to 0x(?P<to>[0-9a-fA-F]+)\s"
)
_CAUSED_BY = re.compile(r"caused by previous Xid (\d+)")
_REGISTERS = re.compile(r"[Ll]ink\s+\d+\s*\((0x[0-9a-fA-F]+(?:,\s*0x[0-9a-fA-F]+)*)\)")
_SM = re.compile(r"\bGPC (\d+),? TPC (\d+)(?:,? SM (\d+))?")
_MMU = re.compile(r"ENGINE (\S+).*faulted @ (0x[0-9a-fA-F_]+)")
_RESET_FLAG = re.compile(r"(?<!D-)\bRST: Yes")
_DRAIN_FLAG = re.compile(r"\bD-RST: Yes")

NVLINK5_CODES = frozenset(str(code) for code in range(144, 151))
# Driver branch from which the first word of an NVLink 5 line has the new unit layout.
NEW_UNIT_LAYOUT_DRIVER = 575
# Bits of Xid 74 after which NVIDIA's catalogue lets work go on, when no other bit is set: in the
# first register noise, in the fifth a threshold of corrected errors.
_HARMLESS_74 = {
    0: (1 << 0) | (1 << 23) | (1 << 30),
    4: (1 << 20) | (1 << 23) | (1 << 26) | (1 << 29),
}

# NVML_FI_DEV_GET_GPU_RECOVERY_ACTION (nvml.h). Drain P2P asks for the peer-to-peer processes to
# end and for the action to be read again; 5 is fabric software; 6 is a reset by another road.
RECOVERY_ACTIONS: dict[int, tuple[Action, Severity]] = {
    0: (Action.NONE, Severity.NOTE),
    1: (Action.RESET_GPU, Severity.FATAL),
    2: (Action.REBOOT_NODE, Severity.FATAL),
    3: (Action.RESTART_APP, Severity.ERROR),
    4: (Action.DRAIN_AND_RESET, Severity.FATAL),
    5: (Action.CHECK_SOFTWARE, Severity.ERROR),
    6: (Action.RESET_GPU, Severity.FATAL),
    7: (Action.REBOOT_NODE, Severity.FATAL),
}


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What one message says, before it has a place in a log and in an incident."""

    fault_class: str
    code: str
    row: FaultRow
    target: Target
    meaning: str
    severity: Severity
    action: Action
    cause_code: str | None = None
    clears: bool = False
    continuation: bool = False
    repeats: bool = False
    locus: str | None = None


def parse_xid(text: str, table: FaultTable, *, driver_branch: int | None) -> Verdict | None:
    """Parse an Xid line, or return None where the line is none.

    Args:
        text: the message, with or without a prefix.
        table: fault table with the site's overrides.
        driver_branch: major driver version, 575 of 575.57.08; None where unknown.
    """
    match = _XID.search(text)
    if match is None:
        return None
    code = str(int(match["code"]))
    row = table.row("xid", code) or table.row("xid", "other")
    if row is None:
        return None
    tail = text[match.end() :]
    pid, link = _PID.search(tail), _LINK.search(tail)
    gi = match["gi"]
    verdict = Verdict(
        fault_class="xid",
        code=code,
        row=row,
        target=Target(
            pci=normalise_pci(match["bdf"]),
            gi=int(gi, 10 if gi.isdecimal() else 16) if gi else None,
            link=int(link[1]) if link else None,
            pid=int(pid[1]) if pid else None,
        ),
        meaning=row.meaning,
        severity=row.severity,
        action=row.action,
        locus=_locus(tail),
    )
    if row.source.startswith("site:"):
        return verdict
    return _refined(verdict, tail, table, driver_branch)


def _refined(verdict: Verdict, tail: str, table: FaultTable, driver_branch: int | None) -> Verdict:
    """Let the line correct the row: it knows which of several cases this is."""
    match verdict.code:
        case "45":
            cause = _CAUSED_BY.search(tail)
            return msgspec.structs.replace(verdict, cause_code=cause[1] if cause else None)
        case "171" | "172":
            return msgspec.structs.replace(verdict, cause_code="48")
        case "74":
            return _refined_74(verdict, tail)
        case "94":
            return _refined_94(verdict, tail)
        case "154":
            return _refined_154(verdict, tail)
        case code if code in NVLINK5_CODES:
            return _refined_nvlink5(verdict, tail, table, driver_branch)
        case _:
            return verdict


def _refined_74(verdict: Verdict, tail: str) -> Verdict:
    registers = _REGISTERS.search(tail)
    if registers is None:
        return verdict
    words = [int(word, 16) for word in registers[1].split(",")]
    serious = any(word & ~_HARMLESS_74.get(i, 0) for i, word in enumerate(words))
    if serious or not any(words):
        return verdict
    return msgspec.structs.replace(
        verdict,
        severity=Severity.WARNING,
        action=Action.OBSERVE,
        meaning=f"{verdict.meaning}; these register bits alone are harmless",
    )


def _refined_94(verdict: Verdict, tail: str) -> Verdict:
    if _RESET_FLAG.search(tail):
        return msgspec.structs.replace(verdict, action=Action.RESET_GPU, severity=Severity.FATAL)
    if _DRAIN_FLAG.search(tail):
        return msgspec.structs.replace(verdict, action=Action.RESET_GPU_WHEN_IDLE)
    return verdict


def _refined_154(verdict: Verdict, tail: str) -> Verdict:
    changed = _RECOVERY.search(tail + "\n")
    known = RECOVERY_ACTIONS.get(int(changed["to"], 16)) if changed else None
    if known is None:
        return msgspec.structs.replace(
            verdict, meaning=f"{verdict.meaning}; the line does not say to what"
        )
    action, severity = known
    return msgspec.structs.replace(
        verdict, action=action, severity=severity, clears=action is Action.NONE
    )


def _refined_nvlink5(
    verdict: Verdict, tail: str, table: FaultTable, driver_branch: int | None
) -> Verdict:
    match = _NVLINK5.search(tail)
    if match is None:
        return verdict
    words = [int(word, 16) for word in (match["words"] or "").split()]
    rule = None
    if len(words) >= 2:
        rule = _nvlink5_rule(table, verdict.code, match["unit"].upper(), words, driver_branch)
    if rule is not None:
        return msgspec.structs.replace(
            verdict,
            severity=rule.row.severity,
            action=rule.row.action,
            meaning=f"{rule.row.meaning}; {rule.row.escalation}",
            locus=match["unit"],
        )
    is_fatal = not match["word"].lower().replace("-", "").endswith("nonfatal")
    return msgspec.structs.replace(
        verdict,
        severity=Severity.FATAL if is_fatal else Severity.WARNING,
        action=Action.RESET_GPU if is_fatal else Action.OBSERVE,
        locus=match["unit"],
    )


def _nvlink5_rule(
    table: FaultTable, code: str, unit: str, words: list[int], driver_branch: int | None
) -> NvlinkRule | None:
    rules = [rule for rule in table.nvlink_rules if rule.code == code]
    old = [rule for rule in rules if rule.unit_id_old == words[0] & 0x3FF]
    new = [rule for rule in rules if rule.unit_id_new == words[0] & 0x7F]
    named = [rule for rule in rules if unit in rule.units]
    if driver_branch is not None:
        candidates = new if driver_branch >= NEW_UNIT_LAYOUT_DRIVER else old
    else:
        # Without a driver version the printed name tells the two layouts apart.
        candidates = [r for r in named if r in old or r in new] or old or new or named
    reason = (words[0] >> 20) & 0x3F
    for rule in candidates:
        if reason in rule.reasons:
            return rule
    with_reasons = any(rule.reasons for rule in candidates)
    for rule in candidates:
        # The row without a reason speaks for reason 0 only: an unlisted one is not known.
        if words[1] in rule.statuses and not (with_reasons and reason):
            return rule
    return None


def _locus(tail: str) -> str | None:
    sm = _SM.search(tail)
    if sm:
        return f"GPC {sm[1]} TPC {sm[2]}"
    mmu = _MMU.search(tail)
    return f"{mmu[1]} {mmu[2]}" if mmu else None


def parse_sxid(text: str, table: FaultTable) -> Verdict | None:
    """Parse an NVSwitch line of the kernel, or return None where the line is none."""
    match = _SXID.search(text)
    if match is None:
        return None
    tail = text[match.end() :].lstrip(", ")
    link = _LINK.search(tail)
    return _sxid_verdict(
        match["code"],
        Target(
            pci=normalise_pci(match["bdf"]),
            link=int(link[1]) if link else None,
            device=_switch_name(match["switch"]),
        ),
        table,
        is_fatal=tail.startswith("Fatal"),
        is_later=_SXID_LATER_RECORD.match(tail) is not None,
    )


def parse_switch_daemon(text: str, table: FaultTable) -> Verdict | None:
    """Parse an NVSwitch line of the fabric manager, or return None where the line is none."""
    match = _SWITCH_DAEMON.search(text)
    if match is None:
        return None
    return _sxid_verdict(
        match["code"],
        Target(pci=normalise_pci(match["bdf"]), link=int(match["port"]) if match["port"] else None),
        table,
        is_fatal=match["word"].lower() == "fatal",
        is_later=False,
    )


def _sxid_verdict(
    digits: str, target: Target, table: FaultTable, *, is_fatal: bool, is_later: bool
) -> Verdict | None:
    code = str(int(digits))
    # The line's own word decides for codes that the table does not know.
    row = table.row("sxid", code) or table.row(
        "sxid", "other", detail="Fatal" if is_fatal else "Non-fatal"
    )
    if row is None or target.pci is None:
        return None
    return Verdict(
        fault_class="sxid",
        code=code,
        row=row,
        target=target,
        meaning=row.meaning,
        severity=row.severity,
        action=row.action,
        continuation=is_later,
    )


def _switch_name(text: str | None) -> str | None:
    return None if text is None else text.removeprefix("nvidia-").lower()
