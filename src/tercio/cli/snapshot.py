"""Snapshots of a work directory: a tar.gz that honours .gitignore and .tercioignore.

The same files give the same bytes, so that an unchanged directory is stored once.
"""

from __future__ import annotations

import gzip
import os
import stat
import tarfile
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Final

from tercio.errors import UserError
from tercio.model.units import format_memory

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

LIMIT_BYTES: Final = 512 * 1024**2
LIMIT_FILES: Final = 50_000
IGNORE_FILES: Final = (".gitignore", ".tercioignore")
VENV_MARK: Final = "pyvenv.cfg"
"""A directory with this file is a virtual environment: it works in its own place only."""
_NEVER: Final = frozenset({".git", ".hg", ".svn", "__pycache__", ".venv", "node_modules"})

_Rules = tuple[tuple[str, "GitIgnoreSpec"], ...]
"""Ignore files in force, the deepest last, each with the directory it stands in."""


class SnapshotFile(tuple[str, str, int]):
    """Path below the directory, absolute path, size in bytes."""

    __slots__ = ()


def list_files(
    root: str, *, limit_bytes: int = LIMIT_BYTES, limit_files: int = LIMIT_FILES
) -> list[SnapshotFile]:
    """Return what a snapshot of `root` holds, sorted.

    Raises:
        UserError: `too_large` as soon as a limit is passed; names the largest parts seen.
    """
    if not os.path.isdir(root):
        raise UserError(f"{root} is not a directory", code="not_found", field="workdir")
    found: list[SnapshotFile] = []
    total_bytes = 0
    by_part: dict[str, int] = {}
    for file in _walk(root, "", ()):
        relative, _, size_bytes = file
        found.append(file)
        total_bytes += size_bytes
        part = relative.split(os.sep, 1)[0]
        by_part[part] = by_part.get(part, 0) + size_bytes
        if total_bytes > limit_bytes or len(found) > limit_files:
            largest = sorted(by_part, key=lambda part: -by_part[part])[:3]
            parts = ", ".join(f"{part} ({format_memory(by_part[part])} so far)" for part in largest)
            raise UserError(
                f"the work directory {root} is over {format_memory(limit_bytes)} "
                f"or {limit_files:,} files: {parts}",
                code="too_large",
                hint="name what is not needed in .tercioignore, or use --no-workdir",
                field="workdir",
            )
    return sorted(found)


def write_snapshot(files: list[SnapshotFile], target: IO[bytes]) -> None:
    """Write the files as tar.gz; owners are left out, so that anyone makes the same bytes."""
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=target, compresslevel=6, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for relative, path, _ in files:
            member = archive.gettarinfo(path, arcname=relative)
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime = int(member.mtime)
            # Hard links and sparse files become plain copies: a snapshot stands alone.
            if member.islnk():
                member.type, member.size = tarfile.REGTYPE, os.stat(path).st_size
            if member.isreg():
                with open(path, "rb") as file:
                    archive.addfile(member, file)
            else:
                archive.addfile(member)


def _walk(root: str, below: str, rules: _Rules) -> Iterator[SnapshotFile]:
    """Yield files and symbolic links below `root`, ignored ones left out."""
    directory = os.path.join(root, below) if below else root
    rules = rules + _read_rules(directory, below)
    with os.scandir(directory) as scan:
        entries = sorted(scan, key=lambda entry: entry.name)
    for entry in entries:
        relative = os.path.join(below, entry.name) if below else entry.name
        if entry.name in _NEVER:
            continue
        is_directory = entry.is_dir(follow_symlinks=False)
        if _is_ignored(relative + "/" if is_directory else relative, rules):
            continue
        if is_directory and os.path.exists(os.path.join(entry.path, VENV_MARK)):
            continue
        if is_directory:
            yield from _walk(root, relative, rules)
            continue
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            _check_link(relative, os.readlink(entry.path))
        if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
            yield SnapshotFile((relative, entry.path, status.st_size))


def _check_link(relative: str, target: str) -> None:
    """Refuse a link that would lead out of the copy: there is something else, or nothing."""
    reached = os.path.normpath(os.path.join(os.path.dirname(relative), target))
    if os.path.isabs(target) or reached.split(os.sep, 1)[0] == os.pardir:
        raise UserError(
            f"the work directory has a link that leads out of it: {relative} -> {target}",
            hint="name it in .tercioignore, put a copy in its place, or use --no-workdir",
            field="workdir",
        )


def _read_rules(directory: str, below: str) -> _Rules:
    found = []
    for name in IGNORE_FILES:
        try:
            with open(os.path.join(directory, name), encoding="utf-8") as file:
                lines = file.read().splitlines()
        except OSError:
            continue
        from pathspec import GitIgnoreSpec

        found.append((below, GitIgnoreSpec.from_lines(lines)))
    return tuple(found)


def _is_ignored(relative: str, rules: _Rules) -> bool:
    """Ask the deepest ignore file first, as git does; the first one with an opinion decides."""
    for below, spec in reversed(rules):
        path = relative[len(below) + 1 :] if below else relative
        opinion = spec.check_file(path).include
        if opinion is not None:
            return opinion
    return False
