"""What a task's control directory says, and putting right what a killed supervisor left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from tercio.engines.base import TaskRef
from tercio.engines.local import control, records
from tercio.errors import EngineError
from tercio.model.events import TaskExited
from tercio.model.ids import JobId, NodeName
from tercio.model.readings import Marks

_POLL_S: Final = 0.01
_SWEEP_ROUNDS: Final = 200
_ANSWER_S: Final = 5.0


class Absent(msgspec.Struct, frozen=True, tag=True):
    """Nothing of the task has ever started here."""


class Alive(msgspec.Struct, frozen=True, tag=True):
    """Its supervisor runs, as process `pid`, since `begun_s`."""

    pid: int
    begun_s: float


class Ended(msgspec.Struct, frozen=True, tag=True):
    """It ended, as `record` says. `begun_s` is None when it never started."""

    record: records.Record
    begun_s: float | None

    @property
    def never_started(self) -> bool:
        """Whether no process of the task ever ran, and none will."""
        return bool(self.record.get("never_started"))


class Dead(msgspec.Struct, frozen=True, tag=True):
    """Its supervisor has gone without a word; what it started may still run."""

    begun: records.Record


Found = Absent | Alive | Ended | Dead


def look(directory: Path, *, patience_s: float = 30.0) -> Found:
    """Return the state of a task. Blocks while a supervisor is between lock and first record."""
    give_up = time.monotonic() + patience_s
    while True:
        ended = records.read_record(str(directory), records.EXIT)
        begun = records.read_record(str(directory), records.BEGUN)
        if ended is not None:
            return Ended(ended, at_s(begun) if begun is not None else None)
        if not directory.is_dir():
            return Absent()
        lock = records.claim(str(directory))
        if lock is not None:
            # Nobody else can start or end it while we hold the lock: look once more.
            try:
                if records.read_record(str(directory), records.EXIT) is not None:
                    continue
                begun = records.read_record(str(directory), records.BEGUN)
                return Dead(begun) if begun is not None else Absent()
            finally:
                os.close(lock)
        if begun is not None:
            return Alive(_pid(directory, begun), at_s(begun))
        if time.monotonic() > give_up:
            raise EngineError(
                f"the supervisor in {directory} holds its lock and does not begin",
                engine="local",
                operation="look",
                retryable=True,
            )
        time.sleep(_POLL_S)


def at_s(record: records.Record) -> float:
    """Return the instant of a record; 0 where a disk lost it."""
    try:
        return float(record["at_s"])
    except (KeyError, ValueError):
        return 0.0


def _pid(directory: Path, begun: records.Record) -> int:
    """Return the supervisor's process. Raises EngineError when neither record nor socket tell."""
    with contextlib.suppress(KeyError, ValueError):
        return int(begun["pid"])
    try:
        return control.listener_pid(directory, timeout_s=_ANSWER_S)
    except OSError as error:
        raise EngineError(
            f"the record of {directory} is damaged, and its supervisor does not answer",
            engine="local",
            operation="look",
            retryable=True,
        ) from error


def fence(directory: Path, *, message: str, at_s: float) -> bool:
    """Write down that an absent task is never to start; False if it has started meanwhile."""
    directory.mkdir(mode=0o711, parents=True, exist_ok=True)
    lock = records.claim(str(directory))
    if lock is None:
        return False
    try:
        if records.read_record(str(directory), records.BEGUN):
            return False
        if records.read_record(str(directory), records.EXIT) is None:
            fields = {"at_s": repr(at_s), "never_started": "1", "is_lost": "1", "message": message}
            records.write_record(str(directory), records.EXIT, fields)
        return True
    finally:
        os.close(lock)


def bury(directory: Path, begun: records.Record, *, at_s: float) -> None:
    """End what a dead supervisor left behind and write the exit record in its place."""
    if begun.get("boot_id") == records.boot_id():
        sweep(directory, begun)
        message = "its supervisor was killed"
    else:
        message = "the machine restarted"
    lock = records.claim(str(directory))
    if lock is None:
        return
    try:
        if records.read_record(str(directory), records.EXIT) is None:
            fields = {"at_s": repr(at_s), "is_lost": "1", "message": message}
            records.write_record(str(directory), records.EXIT, fields)
    except OSError:
        # Without the record it is found dead again, and told lost again: no harm.
        return
    finally:
        os.close(lock)


def sweep(directory: Path, begun: records.Record) -> None:
    """Kill every process of the task: by its groups, and by its mark in their environment."""
    _remove_container(begun)
    groups = [Path(group) for group in begun.get("cgroups", "").split(":") if group]
    mark = f"TERCIO_TASK_DIR={directory / records.TASK}".encode(errors="surrogateescape")
    for _ in range(_SWEEP_ROUNDS):
        left = _marked(mark)
        for group in groups:
            left.update(_members(group))
        if not left:
            break
        for pid in sorted(left):
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        time.sleep(_POLL_S)
    for group in groups:
        try:
            group.rmdir()
        except OSError:
            continue


def _remove_container(begun: records.Record) -> None:
    """End the container of a task: a daemon keeps it alive without its supervisor."""
    words = [word for word in begun.get("container", "").split("\n") if word]
    if not words:
        return
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=30.0, check=False
        )


def _members(group: Path) -> set[int]:
    try:
        pids = [int(line) for line in (group / "cgroup.procs").read_text().split()]
    except OSError:
        return set()
    return {pid for pid in pids if _is_running(pid)}


def _marked(mark: bytes) -> set[int]:
    """Return the processes that carry `mark` in their environment."""
    found = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                environment = file.read()
        except OSError:
            continue
        if mark in environment.split(b"\0") and _is_running(int(name)):
            found.add(int(name))
    return found - {os.getpid()}


def _is_running(pid: int) -> bool:
    fields = records.stat_fields(pid)
    return fields is not None and fields[0] != "Z"


def exited(ref: TaskRef, found: Ended, *, marks: Marks | None = None) -> TaskExited:
    """Return the observation that an exit record stands for, with what the task marked."""
    record = found.record
    code, number = _whole(record, "exit_code"), _whole(record, "signal")
    has_end = code is not None or number is not None or found.never_started
    is_damaged = not has_end and not record.get("is_lost")
    return TaskExited(
        at_s=at_s(record),
        job_id=ref.job_id,
        attempt=ref.attempt,
        task=ref.task,
        exit_code=code,
        signal=number,
        is_lost=is_damaged or bool(record.get("is_lost")),
        message="its exit record is damaged" if is_damaged else record.get("message", ""),
        marks=marks,
    )


def _whole(record: records.Record, key: str) -> int | None:
    """Return a whole number of a record; None where there is none, or where a disk lost it."""
    try:
        return int(record.get(key, ""))
    except ValueError:
        return None


def task_directory(root: Path, ref: TaskRef) -> Path:
    """Return the control directory of a task."""
    return root / ref.job_id / str(ref.attempt) / str(ref.task)


def scan(root: Path, nodes: Sequence[NodeName]) -> list[TaskRef]:
    """Return the tasks that have a directory here and no exit record.

    A task says on which of this machine's nodes it is; one that does not is on the first.
    """
    refs = []
    for path in sorted(root.glob("*/*/*")):
        job, attempt, task = path.parts[-3:]
        if attempt.isdigit() and task.isdigit() and not (path / records.EXIT).exists():
            begun = records.read_record(str(path), records.BEGUN) or {}
            named = NodeName(begun.get("node", ""))
            node = named if named in nodes else nodes[0]
            ref = TaskRef(job_id=JobId(job), attempt=int(attempt), task=int(task), node=node)
            refs.append(ref)
    return refs


def give_up(directory: Path, *, message: str, at_s: float, patience_s: float = 10.0) -> None:
    """Settle a task whose supervisor is being killed in its start: nothing runs or ever will.

    Blocks until it is gone. Raises EngineError when it does not go.
    """
    until = time.monotonic() + patience_s
    while (lock := records.claim(str(directory))) is None:
        if time.monotonic() > until:
            raise EngineError(
                f"the supervisor in {directory} does not end",
                engine="local",
                operation="launch",
                retryable=True,
            )
        time.sleep(_POLL_S)
    try:
        begun = records.read_record(str(directory), records.BEGUN)
        if begun is not None:
            sweep(directory, begun)
        if records.read_record(str(directory), records.EXIT) is None:
            fields = {"at_s": repr(at_s), "never_started": "1", "message": message}
            records.write_record(str(directory), records.EXIT, fields)
    except OSError:
        # The disk is full, most likely. Without `begun` nothing ran; with it, it is told lost.
        return
    finally:
        os.close(lock)


def last_error(directory: Path) -> str:
    """Return `: ` and the last line that a supervisor wrote to its error file, if any."""
    try:
        lines = (directory / "supervisor.err").read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return f": {lines[-1]}" if lines else ""
