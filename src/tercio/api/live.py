"""Events as they go out to those who follow, each made once for all who see the same of it.

With views, an event carries the rows of the jobs and nodes that it touched, as they are now, so
that a page needs no request of its own to stay current. Rows are of the newest state: whoever
reads all events ends with the state that the server has.
"""

from __future__ import annotations

import msgspec

from tercio.api import sse
from tercio.api.redact import redact_event, sight
from tercio.core.driver import Driver
from tercio.core.shares import queue_views
from tercio.core.views import job_view, node_view
from tercio.model.events import AnyEvent, Entry, TaskEvent, subjects
from tercio.model.identity import Principal
from tercio.model.ids import JobId, NodeName, array_parent
from tercio.model.views import EventView, JobView, NodeView, QueueView, View

_KEPT = 4096
_NODES_MAX = 32
_Key = tuple[int, tuple[bool, bool, bool], bool]


class LiveView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event with what it touched; `is_stale` says that more was than is told here.

    `gone` names jobs that are no more: elements of an array leave when they end.
    """

    seq: int
    event: AnyEvent
    jobs: tuple[JobView, ...] = ()
    nodes: tuple[NodeView, ...] = ()
    gone: tuple[JobId, ...] = ()
    is_stale: bool = False


class BoardView(View, frozen=True, kw_only=True):
    """What concerns everybody: the queues, and the server's time."""

    kind: str = "Board"
    seq: int
    now_s: float
    queues: tuple[QueueView, ...]


class Frames:
    """The frames of the newest events, and of the newest board."""

    def __init__(self) -> None:
        self._frames: dict[_Key, bytes] = {}
        self._board = b""
        self.board_seq = -1
        self.board_s = 0.0

    def frame(
        self,
        driver: Driver,
        entry: Entry,
        reader: Principal,
        tenant: str | None,
        *,
        has_views: bool,
    ) -> bytes:
        """Return an event as the reader may see it. `tenant` is of the job it concerns."""
        seen = sight(entry.event, reader, tenant)
        key = (entry.seq, seen, has_views)
        found = self._frames.get(key)
        if found is None:
            event = redact_event(entry.event, reader, tenant)
            view: msgspec.Struct = EventView(seq=entry.seq, event=event)
            if has_views:
                view = _live(driver, entry, event, is_seen=seen[1])
            found = sse.frame(msgspec.json.encode(view), event_id=str(entry.seq))
            if len(self._frames) >= _KEPT:
                for old in list(self._frames)[: _KEPT // 4]:
                    del self._frames[old]
            self._frames[key] = found
        return found

    def board(self, driver: Driver, *, seq: int, now_s: float) -> bytes:
        """Return the board, made anew when something happened since."""
        if self.board_seq != seq:
            queues = tuple(queue_views(driver, now_s))
            view = BoardView(seq=seq, now_s=now_s, queues=queues)
            self._board = sse.frame(msgspec.json.encode(view), name="board")
            self.board_seq, self.board_s = seq, now_s
        return self._board


def _live(driver: Driver, entry: Entry, event: AnyEvent, *, is_seen: bool) -> LiveView:
    cluster = driver.cluster
    jobs: dict[JobId, None] = {}
    nodes: dict[NodeName, None] = {}
    for subject in subjects(entry.event):
        kind, _, name = subject.rpartition("/")
        if kind == "node":
            nodes[NodeName(name)] = None
        elif subject.startswith("job-") and not jobs:
            # The first one only: who may see that one may not see the job it made room for.
            job_id = JobId(subject)
            jobs[job_id] = None
            parent = array_parent(job_id)
            if parent is not None:
                jobs[parent] = None
    if isinstance(entry.event, TaskEvent):
        for job_id in jobs:
            job = cluster.jobs.get(job_id)
            tasks = job.tasks if job is not None else ()
            nodes |= dict.fromkeys(
                task.placement.node for task in tasks if task.placement.task == entry.event.task
            )
    shown = [cluster.nodes[name] for name in list(nodes)[:_NODES_MAX] if name in cluster.nodes]
    rows = [cluster.jobs[job_id] for job_id in jobs if job_id in cluster.jobs]
    return LiveView(
        seq=entry.seq,
        event=event,
        jobs=tuple(job_view(driver, job) for job in rows) if is_seen else (),
        nodes=tuple(node_view(driver, node, is_full=True) for node in shown),
        gone=tuple(job_id for job_id in jobs if job_id not in cluster.jobs),
        is_stale=len(nodes) > len(shown),
    )
