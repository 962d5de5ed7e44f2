"""Uploaded working directories: gzipped tar files, named by their content.

An upload is checked before it is kept: it is a tar, its members stay inside the directory,
none is a device, and what it unpacks to has a bound. Engines unpack it; they rely on this
check but do not skip their own.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from tercio.errors import UserError
from tercio.model.units import format_memory
from tercio.store.failures import mapped
from tercio.store.journal import sync_directory

_ID: Final = re.compile(r"wd-[0-9a-f]{40}")
_HEADER_BYTES_MAX: Final = 1024**2
_UNPACKED_RATIO_MAX: Final = 100


class WorkdirStore:
    """Keeps each distinct snapshot once.

    Args:
        directory: where the files are.
        bytes_max: largest upload, compressed.
        unpacked_bytes_max: most that one may unpack to.
        members_max: most files and directories in one.
    """

    def __init__(
        self,
        directory: Path,
        *,
        bytes_max: int = 1024**3,
        unpacked_bytes_max: int = 8 * 1024**3,
        members_max: int = 200_000,
    ) -> None:
        self._directory = directory
        self._bytes_max = bytes_max
        self._unpacked_bytes_max = unpacked_bytes_max
        self._members_max = members_max

    def upload(self) -> Upload:
        """Begin an upload; feed it by `write`, then `finish` or `close`.

        Raises:
            StoreError: the disk refuses.
        """
        return Upload(
            self._directory,
            bytes_max=self._bytes_max,
            unpacked_bytes_max=self._unpacked_bytes_max,
            members_max=self._members_max,
        )

    def put(self, body: bytes) -> str:
        """Keep one snapshot and return its id; the same content has the same id.

        Raises:
            UserError: too large, or not a tar.gz that stays inside its directory.
            StoreError: the disk refuses.
        """
        with self.upload() as upload:
            upload.write(body)
            return upload.finish()

    def path(self, workdir: str) -> Path:
        """Return the file of a snapshot, and keep it from being pruned for a while.

        Raises:
            UserError: `not_found` when it was never uploaded or was pruned.
        """
        found = self._directory / f"{workdir}.tar.gz"
        if not self.has(workdir):
            raise UserError(
                f"there is no uploaded working directory {workdir!r}",
                code="not_found",
                field="workdir",
                hint="upload it again",
            )
        with suppress(OSError):
            os.utime(found)
        return found

    def has(self, workdir: str) -> bool:
        """Whether a snapshot of this id is kept."""
        is_id = _ID.fullmatch(workdir) is not None
        return is_id and (self._directory / f"{workdir}.tar.gz").is_file()

    def prune(self, used: Collection[str], *, older_than_s: float) -> int:
        """Delete snapshots not in `used` and last uploaded before that instant; return how many.

        The age protects an upload whose job is not submitted yet.
        """
        count = 0
        with mapped("prune", self._directory):
            if not self._directory.is_dir():
                return 0
            for path in sorted(self._directory.iterdir()):
                is_used = path.name.removesuffix(".tar.gz") in used
                if not is_used and path.stat().st_mtime < older_than_s:
                    path.unlink()
                    count += 1
        return count


class Upload:
    """One upload on its way; a context that removes what was not finished."""

    def __init__(
        self, directory: Path, *, bytes_max: int, unpacked_bytes_max: int, members_max: int
    ) -> None:
        self._directory = directory
        self._bytes_max = bytes_max
        self._unpacked_bytes_max = unpacked_bytes_max
        self._members_max = members_max
        self._size_bytes = 0
        self._digest = hashlib.sha256()
        with mapped("write a working directory below", directory):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(prefix=".upload-", dir=directory)
        self._stream = open(descriptor, "wb")  # noqa: SIM115 - closed by finish or close
        self._part = Path(name)

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, chunk: bytes) -> None:
        """Take the next bytes."""
        self._size_bytes += len(chunk)
        if self._size_bytes > self._bytes_max:
            raise UserError(
                f"the working directory is larger than {format_memory(self._bytes_max)} compressed",
                code="too_large",
                field="workdir",
                hint="list large files in .gitignore, or keep them on shared storage",
            )
        self._digest.update(chunk)
        with mapped("write a working directory below", self._directory):
            self._stream.write(chunk)

    def finish(self) -> str:
        """Check the whole upload, keep it durably, and return its id."""
        with mapped("write a working directory below", self._directory):
            self._stream.flush()
            os.fsync(self._stream.fileno())
            self._stream.close()
            self._check()
            workdir = f"wd-{self._digest.hexdigest()[:40]}"
            final = self._directory / f"{workdir}.tar.gz"
            # Also when it is there already: the new time protects it from being pruned.
            os.replace(self._part, final)
            sync_directory(self._directory)
        return workdir

    def close(self) -> None:
        """Remove what was not finished."""
        self._stream.close()
        self._part.unlink(missing_ok=True)

    def _check(self) -> None:
        # Real sources compress far less than a bomb; small uploads may still be sparse.
        most = min(
            self._unpacked_bytes_max, max(64 * 1024**2, self._size_bytes * _UNPACKED_RATIO_MAX)
        )
        try:
            with gzip.open(self._part) as unzipped:
                source = _BoundedReader(unzipped, most)
                with tarfile.open(fileobj=source, mode="r:") as archive:  # type: ignore[call-overload]
                    for count, member in enumerate(archive, start=1):
                        if count > self._members_max:
                            raise _refused(f"it has more than {self._members_max} files")
                        _check_member(member)
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as failure:
            raise _refused(f"it is not a gzipped tar ({failure})") from failure


class _BoundedReader:
    """What `tarfile` reads from: refuses a huge header and an endless stream."""

    def __init__(self, source: gzip.GzipFile, bytes_max: int) -> None:
        self._source = source
        self._bytes_max = bytes_max

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _HEADER_BYTES_MAX:
            raise _refused("one of its headers is too large")
        return self._source.read(size)

    def seek(self, position: int) -> int:
        if position > self._bytes_max:
            raise _refused(f"it unpacks to more than {format_memory(self._bytes_max)}")
        return self._source.seek(position)

    def tell(self) -> int:
        return self._source.tell()


def _check_member(member: tarfile.TarInfo) -> None:
    if not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
        raise _refused(f"{member.name!r} is not a file, directory or link")
    _check_inside(member.name, member.name)
    if member.islnk():
        _check_inside(member.name, member.linkname)
    elif member.issym():
        _check_inside(member.name, str(PurePosixPath(member.name).parent / member.linkname))
        if member.linkname.startswith("/"):
            raise _refused(f"the link {member.name!r} leads outside")
    if member.isfile() and member.mode & (stat.S_ISUID | stat.S_ISGID):
        raise _refused(f"{member.name!r} is set-user-id or set-group-id")


def _check_inside(member: str, path: str) -> None:
    depth = 0
    for part in PurePosixPath(path).parts:
        if part == "..":
            depth -= 1
        elif part != ".":
            depth += 1
        if depth < 0:
            break
    if depth < 0 or path.startswith("/") or "\0" in path:
        raise _refused(f"{member!r} leads outside")


def _refused(why: str) -> UserError:
    return UserError(
        f"the working directory cannot be used: {why}",
        field="workdir",
        hint="upload a .tar.gz of plain files with relative paths",
    )
