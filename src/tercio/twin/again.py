"""A recorded run decided again: the same facts in, are the same decisions made?

A journal holds facts (submits, starts, ends, nodes) and decisions (starts, evictions, growth,
promises). Fed with the facts alone, the driver must come to the decisions that were recorded,
at the places where they were recorded, and to the same state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from tercio.core.cluster import Cluster
from tercio.core.driver import Driver, DriverSettings
from tercio.model.events import (
    AnyEvent,
    Entry,
    JobEvicted,
    JobPlaced,
    PromisesChanged,
    TasksAdded,
)

DECISIONS: Final = (JobPlaced, JobEvicted, TasksAdded, PromisesChanged)
"""What a scheduling cycle writes. Why jobs wait is told now and then only, and is left out."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What deciding again came to.

    Attributes:
        decisions: made again alike.
        difference: the first that was not, or None.
        state_hash: at the end; only of a run without a difference.
    """

    decisions: int
    difference: str | None
    state_hash: str


def decide_again(entries: Sequence[Entry], *, seed: int = 0) -> Verdict:
    """Decide a whole journal again, from its first entry."""
    settings = DriverSettings(tells_waiting=False)
    driver = Driver(Cluster(), settings=settings, seed=seed)
    made, at = 0, 0
    while at < len(entries):
        if not isinstance(entries[at].event, DECISIONS):
            driver.replay(entries[at : at + 1])
            at += 1
            continue
        recorded = _cycle_at(entries, at)
        step = driver.step((), recorded[0].at_s)
        again = [entry.event for entry in step.entries]
        # One turn of the server may have held several cycles at one instant.
        while len(again) < len(recorded) and (more := driver.step((), recorded[0].at_s)).entries:
            again += [entry.event for entry in more.entries]
        for old, new in zip(recorded, again, strict=False):
            if old != new:
                return _differs(made, f"recorded was {old}, decided is {new}")
            made += 1
        if len(recorded) != len(again):
            rest = (recorded[len(again) :] or again[len(recorded) :])[0]
            side = "recorded" if len(recorded) > len(again) else "decided"
            return _differs(made, f"only {side} is {rest}")
        at += len(recorded)
    return Verdict(decisions=made, difference=None, state_hash=driver.cluster.state_hash())


def _cycle_at(entries: Sequence[Entry], at: int) -> list[AnyEvent]:
    """The decisions that stand together from a place on."""
    found: list[AnyEvent] = []
    for entry in entries[at:]:
        is_same = not found or entry.event.at_s == found[0].at_s
        if not isinstance(entry.event, DECISIONS) or not is_same:
            break
        found.append(entry.event)
    return found


def _differs(made: int, how: str) -> Verdict:
    return Verdict(decisions=made, difference=how, state_hash="")
