"""A bare machine for tests: one H100:8 node, and a clock that moves a second per event."""

from __future__ import annotations

from tercio.core.cluster import Cluster
from tercio.core.invariants import check
from tercio.model.effects import AnyEffect
from tercio.model.events import (
    AnyEvent,
    JobPlaced,
    JobSubmitted,
    NodeReported,
    ServerStarted,
    TaskExited,
    TaskStarted,
)
from tercio.model.ids import EffectId, JobId, NodeName, QueuePath
from tercio.model.job import JobSpec, JobState
from tercio.model.placement import TaskPlacement
from tercio.model.resources import DeviceShare
from tercio.testing import make_job, make_node


class Machine:
    def __init__(self) -> None:
        self.cluster = Cluster()
        self.now_s = 1000.0
        self.do(ServerStarted(at_s=self.now_s, epoch=1, version="test"))
        self.do(NodeReported(at_s=self.now_s, spec=make_node("n1")))

    def do(self, event: AnyEvent) -> list[AnyEffect]:
        effects = self.cluster.apply(event)
        check(self.cluster)
        self.now_s += 1
        return effects

    def submit(self, spec: JobSpec | None = None, **fields: object) -> JobId:
        job_id = JobId(f"job-{self.cluster.jobs_submitted + 1:05}")
        self.do(
            JobSubmitted(
                at_s=self.now_s, job_id=job_id, spec=spec or make_job(),
                queue=QueuePath("default"), user="ana", tenant="default", **fields,
            )
        )  # fmt: skip
        return job_id

    def place(self, job_id: JobId, *, tasks: int = 1, first_device: int = 0) -> list[AnyEffect]:
        job = self.cluster.jobs.get(job_id)
        placements = tuple(
            TaskPlacement(
                task=task, node=NodeName("n1"), cpus_milli=1000,
                devices=(DeviceShare(index=first_device + task),),
            )
            for task in range(tasks)
        )  # fmt: skip
        attempt = job.attempt + 1 if job else 1
        return self.do(JobPlaced(at_s=self.now_s, job_id=job_id, attempt=attempt, tasks=placements))

    def start(self, job_id: JobId, *, tasks: int = 1) -> None:
        attempt = self.cluster.jobs[job_id].attempt
        for task in range(tasks):
            self.do(
                TaskStarted(
                    at_s=self.now_s, job_id=job_id, attempt=attempt, task=task,
                    effect_id=EffectId(f"launch:{job_id}/{attempt}/{task}"),
                )
            )  # fmt: skip

    def exit(
        self, job_id: JobId, task: int = 0, code: int | None = 0, **fields: object
    ) -> list[AnyEffect]:
        attempt = self.cluster.jobs[job_id].attempt
        return self.do(
            TaskExited(
                at_s=self.now_s, job_id=job_id, attempt=attempt, task=task, exit_code=code, **fields
            )
        )

    def run(self, spec: JobSpec | None = None, *, tasks: int = 1) -> JobId:
        job_id = self.submit(spec)
        self.place(job_id, tasks=tasks)
        self.start(job_id, tasks=tasks)
        return job_id

    def state(self, job_id: JobId) -> JobState:
        return self.cluster.jobs[job_id].state
