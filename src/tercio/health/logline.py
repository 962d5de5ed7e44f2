"""What stands before a message in a log line: the zoo of stamps and envelopes.

The message itself is found anywhere in the line, so an unknown prefix costs a time stamp and
never a finding.
"""

from __future__ import annotations

import calendar
import re
from datetime import UTC, datetime, timedelta, timezone

import msgspec

# A line longer than this is cut before matching; the kernel's own limit is 1 KiB.
LINE_LENGTH_MAX = 65_536

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_MONTHS = {name: i for i, name in enumerate(calendar.month_abbr) if name}
_MONTH = r"(?P<month>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_CLOCK = r"(?P<h>\d{2}):(?P<m>\d{2}):(?P<s>\d{2}(?:[.,]\d{1,9})?)"

_UPTIME = re.compile(r"\[\s*(?P<seconds>\d+(?:\.\d+)?)\]")
_KMSG = re.compile(r"^\d+,\d+,(?P<usec>\d+),[^;]*;")
_CTIME = re.compile(rf"\[?\w{{3}} {_MONTH} +(?P<day>\d{{1,2}}) {_CLOCK} (?P<year>\d{{4}})\]?")
_ISO = re.compile(
    rf"(?P<year>\d{{4}})-(?P<mon>\d{{2}})-(?P<day>\d{{2}})[T ]{_CLOCK}"
    r"\s?(?P<zone>Z|[+-]\d{2}:?\d{2})?"
)
_YEAR_INSIDE = re.compile(rf"\[{_MONTH} +(?P<day>\d{{1,2}}) (?P<year>\d{{4}}) {_CLOCK}\]")
_SYSLOG = re.compile(rf"{_MONTH} +(?P<day>\d{{1,2}}) {_CLOCK}")
_GLOG = re.compile(rf"\[[IWEF](?P<mon>\d{{2}})(?P<day>\d{{2}}) {_CLOCK}")
# The stamp stands at the start: only this much of a line is searched for one.
_PREFIX_LENGTH = 160


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line without its envelope.

    Attributes:
        text: the line with escape codes and JSON envelope removed.
        at_s: seconds since the epoch, only where the line has a date with a year. Dates without
            a zone, as `dmesg -T` prints them, are read as UTC.
        stamp: clock name and seconds on it; `uptime` restarts at every boot.
    """

    text: str
    at_s: float | None
    stamp: tuple[str, float] | None


class _Envelope(msgspec.Struct):
    """A journald export line, or one of a container runtime's JSON log."""

    message: str | None = msgspec.field(name="MESSAGE", default=None)
    realtime_us: str | None = msgspec.field(name="__REALTIME_TIMESTAMP", default=None)
    log: str | None = None
    time: str | None = None


_decode_envelope = msgspec.json.Decoder(_Envelope).decode


def read_line(raw: str) -> LogLine:
    """Take a raw line apart. Never raises, whatever the bytes were."""
    text = raw[:LINE_LENGTH_MAX]
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if text.startswith("{"):
        unpacked = _unpack(text)
        if unpacked is not None:
            return unpacked
    at_s, stamp = _stamp(text[:_PREFIX_LENGTH])
    return LogLine(text=text, at_s=at_s, stamp=stamp)


def _unpack(text: str) -> LogLine | None:
    try:
        envelope = _decode_envelope(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
    message = envelope.message if envelope.message is not None else envelope.log
    if message is None:
        return None
    at_s: float | None = None
    if envelope.realtime_us is not None and envelope.realtime_us.isdecimal():
        at_s = int(envelope.realtime_us) / 1e6
    elif envelope.time is not None:
        at_s, _ = _stamp(envelope.time)
    if at_s is not None:
        return LogLine(text=message.rstrip("\n"), at_s=at_s, stamp=("epoch", at_s))
    at_s, stamp = _stamp(message[:_PREFIX_LENGTH])
    return LogLine(text=message.rstrip("\n"), at_s=at_s, stamp=stamp)


def _stamp(head: str) -> tuple[float | None, tuple[str, float] | None]:
    kmsg = _KMSG.match(head)
    if kmsg:
        return None, ("uptime", int(kmsg["usec"]) / 1e6)
    dated = _ISO.search(head) or _CTIME.search(head) or _YEAR_INSIDE.search(head)
    if dated:
        at_s = _epoch_s(dated.groupdict())
        if at_s is not None:
            return at_s, ("epoch", at_s)
    uptime = _UPTIME.search(head)
    if uptime and "." in uptime["seconds"]:
        return None, ("uptime", float(uptime["seconds"]))
    yearless = _SYSLOG.search(head) or _GLOG.search(head)
    if yearless:
        # Any leap year does: the clock only serves to compare lines of one log.
        at_s = _epoch_s(yearless.groupdict() | {"year": "2000"})
        if at_s is not None:
            return None, ("yearless", at_s)
    return None, None


def _epoch_s(parts: dict[str, str | None]) -> float | None:
    month_name = parts.get("month")
    month = _MONTHS[month_name] if month_name else int(parts.get("mon") or 0)
    seconds = float((parts["s"] or "0").replace(",", "."))
    try:
        moment = datetime(
            int(parts["year"] or 0),
            month,
            int(parts["day"] or 0),
            int(parts["h"] or 0),
            int(parts["m"] or 0),
            tzinfo=_zone(parts.get("zone")),
        )
        return moment.timestamp() + seconds
    except (ValueError, OverflowError):
        return None


def _zone(text: str | None) -> timezone:
    if text is None or text == "Z":
        return UTC
    minutes = int(text[1:3]) * 60 + int(text[-2:])
    return timezone(timedelta(minutes=-minutes if text[0] == "-" else minutes))


_PCI = re.compile(
    r"(?:(?P<domain>[0-9a-fA-F]{4,8}):)?(?P<bus>[0-9a-fA-F]{2}):(?P<device>[0-9a-fA-F]{2})"
    r"(?:\.(?P<function>[0-9a-fA-F]))?$"
)


def normalise_pci(text: str) -> str | None:
    """Return a PCI address as `dddd:bb:dd.f`, or None where the text is not one.

    The driver prints four digits of the domain, NVML eight; both are the same number.

    >>> normalise_pci("00000000:4F:00")
    '0000:4f:00.0'
    """
    match = _PCI.match(text.strip().rstrip(":"))
    if match is None:
        return None
    domain = int(match["domain"] or "0", 16)
    function = int(match["function"] or "0", 16)
    return f"{domain:04x}:{match['bus'].lower()}:{match['device'].lower()}.{function:x}"
