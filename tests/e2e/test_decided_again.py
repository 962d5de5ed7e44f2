"""A live run on the local engine, recorded and decided again: same decisions, same state."""

from __future__ import annotations

import signal

import msgspec
import pytest

from tercio.core.cluster import Cluster
from tercio.core.driver import Driver
from tercio.model.events import JobPlaced, PromisesChanged
from tercio.store.journal import Journal
from tercio.twin.again import decide_again

from .room import Room

pytestmark = [pytest.mark.e2e]

SMALL = {"cpus": 0.01, "memory": "64MiB", "devices": "CPU:1"}
BOTH = {**SMALL, "devices": "CPU:2"}


def record(room: Room) -> None:
    """Two devices, and more work than fits at once, some of it promised."""
    jobs = [room.submit("true", per_task=SMALL, time={"limit": "5m"}) for _ in range(3)]
    jobs += [room.submit("true", per_task=BOTH, time={"limit": "5m"}) for _ in range(2)]
    jobs += [room.submit("false", per_task=SMALL)]
    for job in jobs:
        room.ended(job)
    room.kill(signal.SIGTERM)


def test_the_twin_decides_a_live_run_alike(live: Room) -> None:
    record(live)
    journal = Journal.open(live.journal)
    try:
        entries = journal.read(limit=1_000_000)
        saved = journal.latest_checkpoint()
    finally:
        journal.close()
    placed = [entry for entry in entries if isinstance(entry.event, JobPlaced)]
    assert len(placed) == 6

    verdict = decide_again(entries)
    assert verdict.difference is None
    made = [e for e in entries if isinstance(e.event, JobPlaced | PromisesChanged)]
    assert verdict.decisions == len(made)

    # The state that the live server itself wrote down when it stopped.
    assert saved is not None
    replayed = Driver(Cluster())
    replayed.replay([entry for entry in entries if entry.seq <= saved.seq])
    assert Cluster.from_image(saved.image).state_hash() == replayed.cluster.state_hash()
    whole = Driver(Cluster())
    whole.replay(entries)
    assert verdict.state_hash == whole.cluster.state_hash()


def test_a_changed_decision_is_seen(live: Room) -> None:
    record(live)
    journal = Journal.open(live.journal)
    try:
        entries = journal.read(limit=1_000_000)
    finally:
        journal.close()
    at = next(i for i, entry in enumerate(entries) if isinstance(entry.event, JobPlaced))
    event = msgspec.structs.replace(entries[at].event, label="backfill")
    entries[at] = msgspec.structs.replace(entries[at], event=event)
    verdict = decide_again(entries)
    assert verdict.difference is not None
    assert "backfill" in verdict.difference
