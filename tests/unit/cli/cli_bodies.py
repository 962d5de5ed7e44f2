"""Bodies as a server sends them, with the few fields a test cares about."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from tercio.model.reasons import Decision, Outcome, Reason, StartEstimate
from tercio.model.views import (
    DecisionView,
    DeviceView,
    JobList,
    JobView,
    NodeList,
    NodeView,
    QueueList,
    QueueView,
    Story,
    StoryLine,
)

NOW_S = time.time()


def job(job_id: str = "job-00001", **fields: Any) -> JobView:
    known: dict[str, Any] = {
        "name": "llama-sft",
        "queue": "research",
        "user": "ana",
        "tenant": "default",
        "state": "running",
        "devices": {"H100": 8.0},
        "submitted_s": NOW_S - 720,
        "started_s": NOW_S - 300,
        "nodes": ("n1",),
        "attempt": 1,
    }
    return JobView(id=job_id, **{**known, **fields})


def waiting(job_id: str = "job-00002", **fields: Any) -> JobView:
    known: dict[str, Any] = {
        "name": "vision",
        "state": "queued",
        "started_s": None,
        "nodes": (),
        "attempt": 0,
        "reason": "Fragmented",
        "message": "needs 4 H100 on one node; 4 free, best node n3 has 2",
        "start": StartEstimate(
            at_s=NOW_S + 1800, low_s=NOW_S + 1500, high_s=NOW_S + 2700, label="reserved"
        ),
    }
    return job(job_id, **{**known, **fields})


def jobs(*rows: JobView, following: str | None = None) -> JobList:
    return JobList(rows=rows or (job(), waiting()), next=following)


def node(name: str = "n1", **fields: Any) -> NodeView:
    known: dict[str, Any] = {
        "site": "local",
        "state": "ready",
        "pool": "H100",
        "total": {"H100": 8.0},
        "free": {"H100": 2.0},
        "cpus": 64.0,
        "cpus_free": 16.0,
        "memory_bytes": 512 * 1024**3,
        "memory_free_bytes": 384 * 1024**3,
        "jobs": ("job-00001",),
        "devices": (DeviceView(index=0, type="H100", used=1.0, jobs=("job-00001",)),),
    }
    return NodeView(name=name, **{**known, **fields})


def nodes(*rows: NodeView) -> NodeList:
    return NodeList(rows=rows or (node(), node("n2", state="cordoned")))


def queue(path: str = "research", **fields: Any) -> QueueView:
    known: dict[str, Any] = {"used": {"H100": 8.0}, "entitled": {"H100": 32.0}, "running": 1}
    return QueueView(path=path, **{**known, **fields})


def queues(*rows: QueueView) -> QueueList:
    return QueueList(rows=rows or (queue(), queue("research/nlp"), queue("default")))


def story(subject: str = "job-00001") -> Story:
    rows = (
        StoryLine(seq=4, at_s=NOW_S - 720, kind="JobSubmitted", text="submitted by ana"),
        StoryLine(seq=7, at_s=NOW_S - 300, kind="JobPlaced", text="placed on n1"),
    )
    return Story(subject=subject, rows=rows)


def decision(**fields: Any) -> DecisionView:
    known: dict[str, Any] = {
        "job": "job-00002",
        "outcome": Outcome.WAITING,
        "reason": Reason.FRAGMENTED,
        "message": "needs 4 H100 on one node; 4 free, best node n3 has 2",
        "wanted": {"H100": 4.0},
        "free": {"H100": 4.0},
        "position": 3,
    }
    return DecisionView(decision=Decision(**{**known, **fields}))


def msgspec_json(body: object) -> bytes:
    return msgspec.json.encode(body)
