"""Values of secrets: one file of mode 0600 for each job, beside the journal, never in it."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import msgspec

from tercio.errors import StoreError
from tercio.model.ids import JobId, array_parent
from tercio.store.failures import mapped
from tercio.store.journal import sync_directory

_JOB: Final = re.compile(r"job-[0-9a-z]+")


class SecretStore:
    """Keeps the values that were given at submit, by job.

    The elements of an array share what their array was given. A value is in no `repr`, no
    error text and no log line.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def put(self, job_id: JobId, values: Mapping[str, str]) -> None:
        """Keep the values durably; nothing is written for none.

        Raises:
            StoreError: the disk refuses.
        """
        if not values:
            return
        path = self._path(job_id)
        with mapped("write the secrets of a job below", self._directory):
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            part = path.with_name(path.name + ".part")
            part.unlink(missing_ok=True)
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                with open(descriptor, "wb") as stream:
                    stream.write(msgspec.json.encode(dict(values)))
                    stream.flush()
                    os.fsync(descriptor)
                os.replace(part, path)
                sync_directory(self._directory)
            finally:
                part.unlink(missing_ok=True)

    def get(self, job_id: JobId) -> dict[str, str]:
        """Return the values of a job or element, empty when it was given none."""
        path = self._path(job_id)
        with mapped("read the secrets of a job below", self._directory):
            try:
                body = path.read_bytes()
            except FileNotFoundError:
                return {}
        try:
            return msgspec.json.decode(body, type=dict[str, str])
        except msgspec.MsgspecError:
            raise StoreError(f"{path} is damaged; submit the job again") from None

    def delete(self, job_id: JobId) -> None:
        """Forget the values of a job; none is no error."""
        with mapped("delete the secrets of a job below", self._directory):
            self._path(job_id).unlink(missing_ok=True)

    def prune(self, living: Collection[JobId]) -> int:
        """Delete what belongs to no living job; return how many files went.

        Only while no job is being submitted: a new one is not among the living yet.
        """
        wanted = {self._path(job).name for job in living}
        count = 0
        with mapped("prune", self._directory):
            if not self._directory.is_dir():
                return 0
            for path in sorted(self._directory.iterdir()):
                if path.name not in wanted:
                    path.unlink()
                    count += 1
        return count

    def _path(self, job_id: JobId) -> Path:
        parent = array_parent(job_id) or job_id
        if not _JOB.fullmatch(parent):
            raise StoreError(f"{job_id!r} is not a job id")
        return self._directory / parent
