"""The spool: one directory that the server and every node see at the same path.

| file of a task | written by | says |
|---|---|---|
| `plan.json`, `run.sh`, `setup.sh`, `task/` | the server | what to run, mode 0600 |
| `number` | the server | its Slurm job |
| `claim` | who takes the task first | a Slurm job, or `stopped`: then it never runs |
| `stop` | the server | signal and grace of the order to stop |
| `begun`, `exit`, `logs/` | the runner | what became of it |
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from tercio.engines.base import TaskRef
from tercio.engines.marks import read_marks, read_new_marks
from tercio.engines.slurm.accounts import Account
from tercio.engines.slurm.order import Refused
from tercio.model.readings import Marks

LOGS: Final = "logs"
TASK: Final = "task"
STOPPED: Final = "stopped"
_RUNNER: Final = Path(__file__).with_name("runner.py")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What the spool says of a task.

    Attributes:
        number: its Slurm job, None when none was submitted as far as is known.
        claimed: the Slurm job that took it, None before; no other ever runs it.
        is_stopped: fenced before it began; it never runs.
        begun: the runner's record of the start, empty before it.
        end: the runner's record of the end, empty before it.
        marks: what the task marked of its progress, None where it marked nothing.
    """

    number: int | None = None
    claimed: int | None = None
    is_stopped: bool = False
    begun: dict[str, Any] = {}
    end: dict[str, Any] = {}
    marks: Marks | None = None

    @property
    def is_final(self) -> bool:
        """Whether the end stands here whole; one that Slurm made is explained by Slurm."""
        return bool(self.end) and not self.end.get("is_outside")

    @property
    def is_absent(self) -> bool:
        """Whether nothing was ever done for the task."""
        return self.number is None and not (self.is_stopped or self.begun or self.end)


class Parcel(msgspec.Struct, frozen=True, kw_only=True):
    """All that is written for one task before it is submitted.

    Attributes:
        texts: files of the control directory, by name.
        files: files of the task's own directory.
        archive: tar.gz of the working directory, None for none.
    """

    texts: dict[str, bytes]
    files: dict[str, str]
    archive: Path | None = None


class Spool(Protocol):
    """Reads and writes the spool; every method blocks and may raise OSError or Refused."""

    root: str

    def prepare(self) -> tuple[str, int]:
        """Make the spool; return the owner's mark, made once, and the newest epoch."""
        ...

    def write_epoch(self, epoch: int) -> None:
        """Remember the newest epoch."""
        ...

    def runner_path(self) -> str:
        """Return the path of the runner on the nodes; puts it there the first time."""
        ...

    def write(self, ref: TaskRef, parcel: Parcel, account: Account) -> None:
        """Make the task's directories and files."""
        ...

    def note(self, ref: TaskRef, name: str, text: str) -> None:
        """Write one small file of a task."""
        ...

    def look(self, refs: Sequence[TaskRef]) -> list[Record]:
        """Return what is known of each task."""
        ...

    def fence(self, ref: TaskRef) -> bool:
        """Claim the task for nobody; return whether nothing had begun."""
        ...

    def read(self, ref: TaskRef, name: str, offset: int, size: int) -> bytes | None:
        """Return bytes of a file of a task, None when it is not there."""
        ...

    def marks(self, wanted: Sequence[tuple[TaskRef, int]]) -> list[tuple[str, int]]:
        """Return the whole lines that tasks marked from an offset on, and the next offsets."""
        ...

    def segments(self, ref: TaskRef) -> dict[int, int]:
        """Return size in bytes by number of the log's files."""
        ...

    def remove(self, refs: Sequence[TaskRef]) -> None:
        """Delete tasks; the attempt's and the job's directories with the last of theirs."""
        ...


def attempt_dir(root: str, ref: TaskRef) -> str:
    """Return the directory that the tasks of an attempt share."""
    return f"{root}/tasks/{ref.job_id}/{ref.attempt}"


def control_dir(root: str, ref: TaskRef) -> str:
    """Return the control directory of a task."""
    return f"{attempt_dir(root, ref)}/{ref.task}"


class LocalSpool:
    """A spool on a file system of this machine, shared with the nodes."""

    def __init__(self, root: str) -> None:
        self.root = root

    def prepare(self) -> tuple[str, int]:
        """See `Spool.prepare`."""
        base = Path(self.root)
        (base / "tasks").mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            # Tasks of other users pass through; what is secret is for its owner by itself.
            for path in (base, base / "tasks"):
                path.chmod(0o711)
        mark = base / "owner"
        if not mark.exists():
            _write(mark, os.urandom(4).hex().encode())
        epoch = base / "epoch"
        text = epoch.read_text() if epoch.exists() else ""
        return mark.read_text().strip(), int(text) if text.isdigit() else 0

    def write_epoch(self, epoch: int) -> None:
        """See `Spool.write_epoch`."""
        _write(Path(self.root) / "epoch", str(epoch).encode())

    def runner_path(self) -> str:
        """See `Spool.runner_path`."""
        source = _RUNNER.read_bytes()
        path = Path(self.root) / f"runner-{fingerprint(source)}.py"
        if not path.exists():
            _write(path, source, mode=0o644)
        return str(path)

    def write(self, ref: TaskRef, parcel: Parcel, account: Account) -> None:
        """See `Spool.write`."""
        directory = Path(control_dir(self.root, ref))
        shared = directory.parent
        shared.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            shared.chmod(0o711)
            shared.parent.chmod(0o711)
        for path in (directory, directory / "task", directory / LOGS):
            path.mkdir(mode=0o700, exist_ok=True)
            _give(path, account)
        for name, text in parcel.texts.items():
            _write(directory / name, text, account=account)
        for name, content in parcel.files.items():
            path = directory / "task" / name
            for parent in reversed(path.relative_to(directory / "task").parents[:-1]):
                (directory / "task" / parent).mkdir(mode=0o700, exist_ok=True)
                _give(directory / "task" / parent, account)
            _write(path, content.encode(errors="surrogateescape"), account=account)
        if parcel.archive is not None:
            _unpack(parcel.archive, shared / "workdir", account)

    def note(self, ref: TaskRef, name: str, text: str) -> None:
        """See `Spool.note`."""
        path = Path(control_dir(self.root, ref)) / name
        _write(path, text.encode(), like=path.parent)

    def look(self, refs: Sequence[TaskRef]) -> list[Record]:
        """See `Spool.look`."""
        return [self._look(Path(control_dir(self.root, ref))) for ref in refs]

    def _look(self, directory: Path) -> Record:
        def read(name: str) -> bytes:
            try:
                return (directory / name).read_bytes()
            except FileNotFoundError:
                return b""

        return record_of(
            read("number"), read("claim"), read("begun"), read("exit"),
            marks=read_marks(directory / TASK),
        )  # fmt: skip

    def fence(self, ref: TaskRef) -> bool:
        """See `Spool.fence`."""
        directory = Path(control_dir(self.root, ref))
        directory.mkdir(mode=0o711, parents=True, exist_ok=True)
        try:
            fd = os.open(directory / "claim", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except FileExistsError:
            return self._look(directory).is_stopped
        os.write(fd, STOPPED.encode())
        os.close(fd)
        return True

    def read(self, ref: TaskRef, name: str, offset: int, size: int) -> bytes | None:
        """See `Spool.read`."""
        try:
            fd = os.open(f"{control_dir(self.root, ref)}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            return os.pread(fd, size, offset)
        finally:
            os.close(fd)

    def marks(self, wanted: Sequence[tuple[TaskRef, int]]) -> list[tuple[str, int]]:
        """See `Spool.marks`."""
        places = [(Path(control_dir(self.root, ref)) / TASK, offset) for ref, offset in wanted]
        return read_new_marks(places)

    def segments(self, ref: TaskRef) -> dict[int, int]:
        """See `Spool.segments`."""
        folder = Path(control_dir(self.root, ref)) / LOGS
        try:
            found = {int(path.name): path.stat().st_size for path in folder.iterdir()}
        except FileNotFoundError:
            return {}
        return dict(sorted(found.items()))

    def remove(self, refs: Sequence[TaskRef]) -> None:
        """See `Spool.remove`."""
        for ref in refs:
            directory = Path(control_dir(self.root, ref))
            shutil.rmtree(directory, ignore_errors=True)
            shared = directory.parent
            if shared.is_dir() and not any(path.name.isdigit() for path in shared.iterdir()):
                shutil.rmtree(shared, ignore_errors=True)
                if not any(shared.parent.iterdir()):
                    shared.parent.rmdir()


def record_of(
    number: bytes, claim: bytes, begun: bytes, end: bytes, *, marks: Marks | None = None
) -> Record:
    """Return the record of a task from the bytes of its files; a torn file counts as absent."""
    return Record(
        number=int(number) if number.strip().isdigit() else None,
        claimed=int(claim) if claim.strip().isdigit() else None,
        is_stopped=claim.strip() == STOPPED.encode(),
        begun=_json(begun),
        end=_json(end),
        marks=marks,
    )


def fingerprint(source: bytes) -> str:
    """Return a short name of a version of the runner."""
    import hashlib

    return hashlib.sha256(source).hexdigest()[:8]


def _json(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _write(
    path: Path,
    content: bytes,
    *,
    mode: int = 0o600,
    account: Account | None = None,
    like: Path | None = None,
) -> None:
    """Write a file in one step, for the account or the owner of the directory `like`."""
    part = path.with_name(path.name + ".new")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
        if account is not None and not account.is_self:
            os.fchown(file.fileno(), account.uid, account.gid)
        elif like is not None and os.geteuid() == 0:
            owner = like.stat()
            os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
    part.replace(path)


def _give(path: Path, account: Account) -> None:
    if not account.is_self:
        os.chown(path, account.uid, account.gid)


def _unpack(archive: Path, target: Path, account: Account) -> None:
    """Unpack a snapshot once per attempt, as the job's user: it can reach nothing of others."""
    if target.exists():
        return
    fresh = target.with_name("workdir.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    _give(fresh, account)
    options: Mapping[str, Any] = {}
    if not account.is_self:
        options = {
            "user": account.uid, "group": account.gid, "extra_groups": list(account.groups)
        }  # fmt: skip
    with archive.open("rb") as stream:
        done = subprocess.run(
            ["tar", "-xzf", "-", "--no-same-owner", "-C", str(fresh)],
            stdin=stream, capture_output=True, text=True, check=False, **options,
        )  # fmt: skip
    if done.returncode:
        shutil.rmtree(fresh, ignore_errors=True)
        raise Refused(f"bad snapshot: {done.stderr.strip()[-200:]}")
    fresh.rename(target)
