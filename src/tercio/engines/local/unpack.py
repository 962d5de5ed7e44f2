"""Unpacks a member of a snapshot and refuses what would land outside (PEP 706).

Python has the filter for this since 3.11.4. Debian 12 ships 3.11.2, and enterprise systems
linger on others before it: there the same rules are applied here.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path


def unpack_member(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    """Write one member below `target`.

    Raises:
        tarfile.TarError: for what would land or point outside, and for special files.
        OSError: when it cannot be written.
    """
    if hasattr(tarfile, "data_filter"):
        tar.extract(member, target, filter="data")
        return
    root = os.path.realpath(target)
    path = os.path.join(root, member.name.lstrip("/"))
    _check_inside(root, path, member)
    if member.isdir():
        os.makedirs(path, exist_ok=True)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if member.issym():
        if os.path.isabs(member.linkname):
            raise tarfile.TarError(f"{member.name!r} is a link to an absolute path")
        _check_inside(root, os.path.join(os.path.dirname(path), member.linkname), member)
        os.symlink(member.linkname, path)
    elif member.isreg():
        _write_file(tar, member, path)
    else:
        raise tarfile.TarError(f"{member.name!r} is neither file, directory nor symbolic link")


def _check_inside(root: str, path: str, member: tarfile.TarInfo) -> None:
    real = os.path.realpath(path)
    if os.path.commonpath((root, real)) != root:
        raise tarfile.TarError(f"{member.name!r} would be outside the work directory")


def _write_file(tar: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
    source = tar.extractfile(member)
    if source is None:
        raise tarfile.TarError(f"{member.name!r} has no content")
    # No setuid or sticky bits, not writable by others; its owner may always read and write it.
    mode = member.mode & 0o755 | 0o600
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with source, os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        shutil.copyfileobj(source, file)
        os.fchmod(file.fileno(), mode)
    os.utime(path, (member.mtime, member.mtime))
