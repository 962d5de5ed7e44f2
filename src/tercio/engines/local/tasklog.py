r"""The log of a task: numbered files of lines, each with its time and stream, bounded in all.

One line is `MILLISECONDS STREAM FLAG SPACE TEXT \n`: 13 digits, `o`, `e` or `t` (out, err,
tercio), `.` for a whole line or `+` for one that goes on in the next line. The text is the
task's own bytes, whatever they are. When the files together reach the cap, the oldest goes.
Imports nothing heavy (see the package); `logread` is the other side.
"""

from __future__ import annotations

import os
import time

SEGMENTS = 8
LINE_BYTES_MAX = 16 * 1024
HEADER_BYTES = 16
_BLOCK_BYTES_MAX = 7 * LINE_BYTES_MAX
OUT, ERR, NOTE = b"o", b"e", b"t"


def segment_name(number: int) -> str:
    """Return the file name of the segment with this number, from 1."""
    return f"{number:08d}"


class LogWriter:
    """Writes the log of one task. Never raises for a full disk: it counts what it lost."""

    __slots__ = ("_directory", "_fd", "_is_torn", "_lost_bytes", "_number", "_partial", "_size",
                 "_size_max")  # fmt: skip

    def __init__(self, directory: str, *, cap_bytes: int) -> None:
        self._directory = directory
        self._size_max = max(cap_bytes // SEGMENTS, 8 * LINE_BYTES_MAX)
        self._partial = {OUT: b"", ERR: b""}
        self._lost_bytes = 0
        self._is_torn = False
        self._number = 0
        self._fd = -1
        self._size = 0
        self._rotate()

    @property
    def has_partial(self) -> bool:
        """Whether text without its newline waits in memory."""
        return any(self._partial.values())

    def feed(self, stream: bytes, chunk: bytes) -> None:
        """Take the next bytes that the task wrote to one stream."""
        lines = (self._partial[stream] + chunk).split(b"\n")
        rest = lines.pop()
        head = _header(stream)
        whole, part = head + b". ", head + b"+ "
        records = []
        for line in lines:
            cut = line
            while len(cut) > LINE_BYTES_MAX:
                records.append(part + cut[:LINE_BYTES_MAX])
                cut = cut[LINE_BYTES_MAX:]
            records.append(whole + cut)
        while len(rest) > LINE_BYTES_MAX:
            records.append(part + rest[:LINE_BYTES_MAX])
            rest = rest[LINE_BYTES_MAX:]
        self._partial[stream] = rest
        # Headers make short lines many times longer; one write must fit into one segment.
        start = size = 0
        for at, record in enumerate(records):
            if size + len(record) + 1 > _BLOCK_BYTES_MAX:
                self._write(b"\n".join(records[start:at]) + b"\n")
                start, size = at, 0
            size += len(record) + 1
        if size:
            self._write(b"\n".join(records[start:]) + b"\n")

    def flush(self, *, is_end: bool = False) -> None:
        """Write text that waits for its newline, so that a prompt or a progress bar is seen."""
        for stream, rest in self._partial.items():
            if rest:
                self._partial[stream] = b""
                self._write(_header(stream) + (b". " if is_end else b"+ ") + rest + b"\n")

    def note(self, text: str) -> None:
        """Write a line of Tercio itself."""
        self.flush()
        clean = text.replace("\n", " ").encode(errors="replace")
        self._write(_header(NOTE) + b". " + clean + b"\n")

    def close(self) -> None:
        """Write what waits and close the file."""
        self.flush(is_end=True)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, records: bytes) -> None:
        if self._fd < 0 or (self._size and self._size + len(records) > self._size_max):
            self._rotate()
        before = b"\n" if self._is_torn else b""
        if self._lost_bytes:
            lost = b"%d bytes of output were lost: the disk was full" % self._lost_bytes
            before += _header(NOTE) + b". " + lost + b"\n"
        whole = before + records
        written = 0
        try:
            while written < len(whole):
                written += os.write(self._fd, whole[written:])
        except OSError:
            self._lost_bytes += len(records)
            self._is_torn = self._is_torn or written > 0
        else:
            self._lost_bytes = 0
            self._is_torn = False
        self._size += written

    def _rotate(self) -> None:
        number = self._number + 1
        path = f"{self._directory}/{segment_name(number)}"
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError:
            # No room for a new file: the present one is emptied, so that the cap still holds.
            if self._fd >= 0:
                os.ftruncate(self._fd, 0)
                self._size = 0
            return
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._number, self._size, self._is_torn = fd, number, 0, False
        if number > SEGMENTS:
            try:
                os.unlink(f"{self._directory}/{segment_name(number - SEGMENTS)}")
            except OSError:
                return


def _header(stream: bytes) -> bytes:
    return b"%013d%s" % (time.time_ns() // 1_000_000, stream)
