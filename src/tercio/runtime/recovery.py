"""From the journal back to a running state: the newest sound checkpoint, then what follows."""

from __future__ import annotations

import hashlib
import logging
from typing import Final

from tercio.core.cluster import Cluster
from tercio.core.driver import Driver, DriverSettings
from tercio.core.transitions import TaskState
from tercio.engines.base import TaskRef
from tercio.errors import StoreError
from tercio.logs import facts
from tercio.model.ids import JobId, SiteName
from tercio.store.journal import Journal
from tercio.store.reader import JournalReader

_PAGE: Final = 5_000
log = logging.getLogger(__name__)


def recover(journal: Journal, *, settings: DriverSettings | None = None, seed: int = 0) -> Driver:
    """Return a driver in exactly the state of the last durable entry.

    Raises:
        StoreError: the journal cannot be read, or no checkpoint is sound and the entries
            before it are gone.
    """
    cluster, seq = _newest_sound(journal)
    driver = Driver(cluster, seq=seq, settings=settings, seed=seed)
    while page := journal.read(driver.seq, _PAGE):
        driver.replay(page)
    return driver


def read_state(reader: JournalReader) -> tuple[Cluster, int]:
    """Return the state of the last durable entry, and its sequence, beside a running server.

    Raises:
        StoreError: as of `recover`.
    """
    cluster, seq = _newest_sound(reader)
    while page := reader.read(seq, _PAGE):
        for entry in page:
            cluster.apply(entry.event)
        seq = page[-1].seq
    return cluster, seq


def digest(image: bytes) -> str:
    """Return what a checkpoint is told sound by."""
    return hashlib.sha256(image).hexdigest()


def _newest_sound(journal: Journal | JournalReader) -> tuple[Cluster, int]:
    for checkpoint in journal.checkpoints():
        try:
            if digest(checkpoint.image) != checkpoint.digest:
                raise StoreError("its digest does not match")
            return Cluster.from_image(checkpoint.image), checkpoint.seq
        except StoreError as failure:
            log.warning("checkpoint_unsound", extra=facts(seq=checkpoint.seq, error=str(failure)))
    if journal.first_seq > 1:
        raise StoreError(
            f"{journal.path}: no checkpoint is sound, and entries before {journal.first_seq} "
            "were dropped; stop the server and run `tercio restore BACKUP`"
        )
    return Cluster(), 0


def believed_tasks(cluster: Cluster, site: SiteName) -> list[TaskRef]:
    """Return the tasks of a site that the journal believes started or stopping, in job order."""
    known: list[TaskRef] = []
    for job in cluster.jobs.values():
        for task in job.live_tasks:
            node = cluster.nodes.get(task.placement.node)
            is_there = node is not None and node.spec.site == site
            if is_there and task.state in (TaskState.RUNNING, TaskState.STOPPING):
                known.append(
                    TaskRef(
                        job_id=job.id,
                        attempt=job.attempt,
                        task=task.placement.task,
                        node=task.placement.node,
                    )
                )
    return known


def is_live(cluster: Cluster, job_id: JobId, attempt: int, task: int) -> bool:
    """Whether this task of this attempt is live in the state, in launch included."""
    job = cluster.jobs.get(job_id)
    if job is None or job.attempt != attempt:
        return False
    return any(each.placement.task == task for each in job.live_tasks)
