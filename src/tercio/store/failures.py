"""The one place where errors of SQLite and of the file system become `StoreError`.

The text says what happened, to which file, and what to do. Nothing outside this package
sees a `sqlite3.Error`.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tercio.errors import StoreError

_RESTORE: Final = "stop the server and run `tercio restore BACKUP`"

# By SQLite's result name (https://www.sqlite.org/rescode.html), most special first.
_CAUSES: Final[tuple[tuple[str, str], ...]] = (
    ("SQLITE_FULL", "the disk is full; free space in {dir}"),
    ("SQLITE_IOERR_FSYNC", "the disk could not confirm a write; check it (dmesg) and {dir}"),
    ("SQLITE_IOERR_WRITE", "a write failed (quota, file size limit or bad disk); check {dir}"),
    ("SQLITE_IOERR", "the disk failed; check it (dmesg) and {dir}"),
    ("SQLITE_READONLY", "it cannot be written; check its owner and mode, and the mount of {dir}"),
    ("SQLITE_PERM", "it cannot be opened; check its owner and mode"),
    ("SQLITE_CANTOPEN", "it cannot be opened; check that {dir} exists and is writable"),
    ("SQLITE_CORRUPT", f"it is damaged; {_RESTORE}"),
    ("SQLITE_NOTADB", f"it is not a journal, or its head is damaged; {_RESTORE}"),
    ("SQLITE_BUSY", "another program holds it; find it with `fuser {path}`"),
    ("SQLITE_LOCKED", "another program holds it; find it with `fuser {path}`"),
    ("SQLITE_PROTOCOL", "its file system does not lock files; keep {dir} on a local disk"),
    ("SQLITE_TOOBIG", "one entry is larger than SQLite takes"),
)
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def mapped(operation: str, path: Path) -> Iterator[None]:
    """Raise `StoreError` instead of any error of SQLite or of the file system."""
    try:
        yield
    except sqlite3.Error as failure:
        raise StoreError(_from_sqlite(failure, operation, path)) from failure
    except OSError as failure:
        raise StoreError(_from_os(failure, operation, path)) from failure


def _from_sqlite(failure: sqlite3.Error, operation: str, path: Path) -> str:
    name = getattr(failure, "sqlite_errorname", "")
    for prefix, cause in _CAUSES:
        if name.startswith(prefix):
            told = cause.format(dir=path.parent, path=path)
            return f"cannot {operation} {path}: {told}"
    return f"cannot {operation} {path}: {failure}"


def _from_os(failure: OSError, operation: str, path: Path) -> str:
    where = failure.filename or path
    if failure.errno in _FULL:
        cause = f"no space is left (disk, quota or file size limit); free space in {path.parent}"
    elif failure.errno == errno.EROFS:
        cause = f"the file system is mounted read-only; remount {path.parent} writable"
    elif failure.errno in (errno.EACCES, errno.EPERM):
        cause = f"user {os.geteuid()} may not; check the owner and mode of {where}"
    elif failure.errno == errno.ENOENT:
        cause = f"{where} does not exist"
    else:
        cause = failure.strerror or str(failure)
    return f"cannot {operation} {path}: {cause}"
