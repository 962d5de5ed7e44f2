"""The simulated machines' memory: it is theirs, not the server's, so it may survive a server."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from tercio.engines.base import TaskRef
from tercio.engines.sim.script import Behaviour
from tercio.model.ids import JobId, NodeName
from tercio.model.node import MigSpec


class SimTask(msgspec.Struct, kw_only=True):
    """One simulated task.

    Attributes:
        started_s: None when it was fenced before its start.
        ends_s: when it will end or did, None while suspended.
        left_s: run time left while suspended.
        is_stopping: a stop was ordered.
        is_ended: it has ended; the next four say how, before that they say how it would.
        is_held: its end is not told yet, because its node is lost.
    """

    job_id: JobId
    attempt: int
    task: int
    node: NodeName
    behaviour: Behaviour
    started_s: float | None = None
    ends_s: float | None = None
    left_s: float = 0.0
    is_stopping: bool = False
    is_ended: bool = False
    is_held: bool = False
    exit_code: int | None = None
    signal: int | None = None
    is_lost: bool = False
    message: str = ""

    @property
    def ref(self) -> TaskRef:
        """The task's reference."""
        return TaskRef(job_id=self.job_id, attempt=self.attempt, task=self.task, node=self.node)


class SimState(msgspec.Struct, kw_only=True):
    """All simulated tasks by key, the lost nodes, the cut devices, and the newest epoch.

    Attributes:
        path: file that every change is written to, or None for memory only.
    """

    tasks: dict[str, SimTask] = {}
    lost: dict[NodeName, str] = {}
    cuts: dict[str, MigSpec] = {}
    cut_numbers: dict[str, int] = {}
    epoch: int = 0
    path: str | None = None

    def save(self) -> None:
        """Write the state to its file, if it has one; whole or not at all."""
        if self.path is not None:
            fresh = Path(f"{self.path}.new")
            fresh.write_bytes(msgspec.json.encode(self))
            os.replace(fresh, self.path)


def open_state(path: Path) -> SimState:
    """Return the state kept in a file, a fresh one when there is no such file."""
    try:
        state = msgspec.json.decode(path.read_bytes(), type=SimState)
    except FileNotFoundError:
        state = SimState()
    state.path = str(path)
    return state
