"""The server's own log: one constant event name per message, facts as fields.

Used by the packages that do I/O only. `console` is for people, `json` for collectors.

>>> record = logging.LogRecord("tercio.x", logging.INFO, "", 0, "task_adopted", (), None)
>>> record.facts = {"job_id": "job-00001"}
>>> ConsoleFormatter().format(record).partition(" ")[2]
'info    task_adopted job_id=job-00001'
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import sys
from typing import TextIO

_ROOT = "tercio"


def facts(**fields: object) -> dict[str, dict[str, object]]:
    """Return the `extra` of a log call: `log.info("task_adopted", extra=facts(job_id=job))`."""
    return {"facts": fields}


def configure(level: str, form: str, *, stream: TextIO | None = None) -> None:
    """Send Tercio's log to `stream` (standard error) as `console`, `json` or `auto`."""
    stream = sys.stderr if stream is None else stream
    is_console = form == "console" or (form == "auto" and stream.isatty())
    sink = logging.StreamHandler(stream)
    sink.setFormatter(ConsoleFormatter() if is_console else JsonFormatter())
    root = logging.getLogger(_ROOT)
    root.handlers[:] = [sink]
    root.setLevel(level.upper())
    root.propagate = False


def _facts_of(record: logging.LogRecord) -> dict[str, object]:
    found = getattr(record, "facts", None)
    return dict(found) if isinstance(found, dict) else {}


def _instant(record: logging.LogRecord) -> str:
    instant = dt.datetime.fromtimestamp(record.created, tz=dt.UTC)
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class JsonFormatter(logging.Formatter):
    """One JSON object a line: at, level, event, logger, and the facts."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, object] = {
            "at": _instant(record),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
        }
        line.update(_facts_of(record))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class ConsoleFormatter(logging.Formatter):
    """Time, level, event, then `name=value` facts; a traceback on its own lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        parts = [_instant(record), f"{record.levelname.lower():<7}", record.getMessage()]
        for name, value in _facts_of(record).items():
            text = str(value)
            is_plain = text and not any(c.isspace() or c in '"=' for c in text)
            parts.append(f"{name}={text}" if is_plain else f"{name}={json.dumps(text)}")
        if record.exc_info:
            parts.append("\n" + self.formatException(record.exc_info))
        return " ".join(parts)
