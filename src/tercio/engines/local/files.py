"""Files of the whole tasks directory: the newest epoch, and deleting what is forgotten."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from tercio.engines.base import TaskRef
from tercio.engines.local import records
from tercio.engines.local.found import task_directory

_EPOCH = "epoch"


def read_epoch(root: Path) -> int:
    """Return the newest epoch seen in this directory, 0 for none."""
    record = records.read_record(str(root), _EPOCH)
    try:
        return int(record["epoch"]) if record else 0
    except (KeyError, ValueError):
        # A disk lost it. The next order brings the newest: the journal counts the runs, too.
        return 0


def write_epoch(root: Path, epoch: int) -> None:
    """Remember the newest epoch over restarts."""
    records.write_record(str(root), _EPOCH, {"epoch": str(epoch)})


def forget_tasks(root: Path, tasks: Sequence[TaskRef]) -> None:
    """Delete the directories of tasks that no supervisor holds, and empty ones above them."""
    for ref in tasks:
        directory = task_directory(root, ref)
        try:
            lock = records.claim(str(directory))
        except FileNotFoundError:
            continue
        if lock is None:
            continue
        try:
            shutil.rmtree(directory, ignore_errors=True)
        finally:
            os.close(lock)
        _tidy_up(directory.parent)


def _tidy_up(attempt_dir: Path) -> None:
    """Delete an attempt's snapshot when its last task has gone, and the job's directory then."""
    if any(path.name.isdigit() for path in attempt_dir.iterdir()):
        return
    shutil.rmtree(attempt_dir, ignore_errors=True)
    try:
        attempt_dir.parent.rmdir()
    except OSError:
        # Another attempt is still there.
        return
