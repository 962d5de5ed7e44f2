"""What the routes work with: the controller and the stores around it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec

from tercio.api.auth import Authenticator
from tercio.api.children import Children
from tercio.api.execs import ExecSessions
from tercio.api.live import Frames
from tercio.api.policy_shadow import PolicyShadow
from tercio.api.redact import sees_tenant
from tercio.api.sessions import Sessions
from tercio.api.sse import alive
from tercio.api.twin_runs import TwinRuns
from tercio.config import Config
from tercio.core.cluster import Cluster
from tercio.core.records import Job
from tercio.errors import UserError, did_you_mean
from tercio.model.identity import Principal
from tercio.model.ids import JobId
from tercio.runtime.controller import Controller
from tercio.runtime.prices import PriceReader
from tercio.runtime.queue_past import QueuePasts
from tercio.store.journal import Journal


class ApiContext(msgspec.Struct, frozen=True, kw_only=True):
    """The server around a request.

    Attributes:
        controller: takes commands; its driver is read for views.
        journal: read for stories and pages of events.
        auth: turns tokens into principals.
        sessions: signs browsers in.
        frames: events as they are sent, made once for all who follow.
        execs: commands that run inside tasks.
        children: processes that answer long questions.
        twin_runs: of the twin, on this server's own past.
        policy_shadow: the policy that runs in shadow, if one does.
        queues: what queues were like before.
        prices: reads what power costs.
        config: of the process.
        now: seconds since the epoch.
        started_s: when this server run began.
        stopping: set when the server stops; streams end then.
    """

    controller: Controller
    journal: Journal
    auth: Authenticator
    sessions: Sessions
    frames: Frames
    execs: ExecSessions
    children: Children
    twin_runs: TwinRuns
    policy_shadow: PolicyShadow
    queues: QueuePasts
    prices: PriceReader
    config: Config
    now: Callable[[], float]
    started_s: float
    stopping: asyncio.Event

    @property
    def cluster(self) -> Cluster:
        """The state as it is now; only read."""
        return self.controller.driver.cluster

    @property
    def scratch(self) -> Path:
        """Directory for files that live as long as one request."""
        return self.config.state_path

    def stream(self, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Keep a stream alive until it ends or the server stops."""
        return alive(frames, stopping=self.stopping)

    def check_site(self, name: str | None) -> None:
        """Refuse a site that there is not.

        Raises:
            UserError: `not_found`, with the nearest name.
        """
        sites = self.controller.sites
        if name is not None and name not in sites:
            raise UserError(
                f"there is no site {name!r}",
                code="not_found",
                field="site",
                hint=did_you_mean(name, sites) or f"sites: {', '.join(sites)}",
            )

    def job(self, name: str, reader: Principal) -> Job:
        """Return a job that the reader may see.

        Raises:
            UserError: `not_found`, also for a job of another tenant.
        """
        jobs = self.cluster.jobs
        job = jobs.get(JobId(name))
        if job is None or not sees_tenant(reader, job.tenant):
            seen = (j.id for j in jobs.values() if sees_tenant(reader, j.tenant))
            hint = did_you_mean(name, seen) if len(jobs) <= 1000 else None
            raise UserError(
                f"there is no job {name!r}",
                code="not_found",
                hint=hint or "`tercio ps --all` lists jobs",
            )
        return job
