"""New lines of the kernel log, each once: from /dev/kmsg, or from a file that grows.

A cursor (boot id and sequence number) is kept in a file, so that a restart loses no line and
repeats none. Without a cursor only what comes from now on counts: an old fault was dealt with.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec

from tercio.model.readings import KernelLine

KMSG = "kmsg"
_KMSG_PATH = Path("/dev/kmsg")
_RECORD_BYTES = 8192
_READ_BYTES = 4 * 1024**2
_LINES_MAX = 20_000


class Cursor(msgspec.Struct, frozen=True, kw_only=True):
    """How far a log was read: of which boot (or file), and up to which number."""

    log: str
    seq: int


def read_boot_id() -> str:
    """Return the id of this boot, empty where the kernel does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class KernelLog:
    """Reads what is new. `read` moves on in memory, `save` makes that durable."""

    def __init__(self, source: str, *, cursor_file: Path | None = None) -> None:
        """Choose the log.

        Args:
            source: `kmsg`, a path, or empty for none.
            cursor_file: where the cursor is kept; None keeps it in memory only.
        """
        self._source = source
        self._file = cursor_file
        self._cursor = self._load()
        self.note = ""

    def read(self) -> list[KernelLine]:
        """Return the lines that came since the last call; what goes wrong is in `note`."""
        self.note = ""
        try:
            if self._source == KMSG:
                return self._read_kmsg()
            return self._read_file(Path(self._source)) if self._source else []
        except OSError as error:
            self.note = f"{self._source}: {error.strerror or error}"
            return []

    def save(self) -> None:
        """Keep the cursor over a restart. Raises OSError."""
        if self._file is None or self._cursor is None:
            return
        fresh = self._file.with_name(self._file.name + ".new")
        fresh.write_bytes(msgspec.json.encode(self._cursor))
        fresh.replace(self._file)

    def _load(self) -> Cursor | None:
        try:
            content = self._file.read_bytes() if self._file is not None else b""
            return msgspec.json.decode(content, type=Cursor) if content else None
        except (OSError, msgspec.DecodeError):
            return None

    def _read_kmsg(self) -> list[KernelLine]:
        boot = read_boot_id()
        known = self._cursor if self._cursor is not None and self._cursor.log == boot else None
        after = known.seq if known is not None else -1
        # Of an earlier boot, all of this one is new; without any cursor, only what comes.
        is_first = self._cursor is None
        found: list[KernelLine] = []
        fd = os.open(_KMSG_PATH, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            while len(found) < _LINES_MAX:
                try:
                    record = os.read(fd, _RECORD_BYTES)
                except BlockingIOError:
                    break
                except OSError as error:
                    if error.errno == errno.EPIPE:
                        continue  # overrun: the next read goes on with the oldest that is left
                    raise
                line = _record(record.decode(errors="replace"))
                if line is not None and line.seq > after:
                    found.append(line)
        finally:
            os.close(fd)
        self._cursor = Cursor(log=boot, seq=found[-1].seq if found else after)
        return [] if is_first else found

    def _read_file(self, path: Path) -> list[KernelLine]:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            name = f"{status.st_dev}:{status.st_ino}"
            if self._cursor is None:
                self._cursor = Cursor(log=name, seq=status.st_size)
                return []
            start = self._cursor.seq if self._cursor.log == name else 0
            start = start if start <= status.st_size else 0  # truncated in place
            file.seek(start)
            content = file.read(_READ_BYTES)
        whole, newline, _ = content.rpartition(b"\n")
        found: list[KernelLine] = []
        at = start
        for raw in (whole + newline).splitlines(keepends=True):
            found.append(KernelLine(seq=at, text=raw.decode(errors="replace").rstrip("\r\n")))
            at += len(raw)
        self._cursor = Cursor(log=name, seq=at)
        return found


def since_boot(source: str) -> str:
    """Return what a log holds now: of the kernel since boot, of a file all of it. Raises OSError.

    Moves no cursor.
    """
    if not source:
        return ""
    if source != KMSG:
        return Path(source).read_text(encoding="utf-8", errors="replace")
    log = KernelLog(KMSG)
    log._cursor = Cursor(log="", seq=-1)
    lines = log.read()
    if log.note:
        raise OSError(log.note)
    return "\n".join(line.text for line in lines)


def _record(record: str) -> KernelLine | None:
    """Return a record of /dev/kmsg, `6,1234,5678,-;text`, with its prefix; None for no record."""
    head, semicolon, _ = record.partition(";")
    parts = head.split(",")
    if not semicolon or len(parts) < 3 or not parts[1].isdigit():
        return None
    return KernelLine(seq=int(parts[1]), text=record.split("\n", 1)[0])
