"""What requests carry: bodies and query parameters. Unknown names are refused."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from tercio.api.wire import PAGE_ROWS, PAGE_ROWS_MAX
from tercio.model.identity import Role
from tercio.model.job import JobState
from tercio.model.series_views import Metric

Limit = Annotated[int, Meta(ge=1, le=PAGE_ROWS_MAX, description="most rows in the page")]
Cursor = Annotated[str, Meta(description="`next` of the page before", max_length=512)]
Instant = Annotated[
    str, Meta(description="RFC 3339 instant or seconds since the epoch", max_length=64)
]
_END: Final = r"$(?!\n)"
"""The end of the text. Python's `$` alone lets a newline follow; JavaScript's does not."""

Name = Annotated[
    str, Meta(min_length=1, max_length=128, pattern=rf"^[A-Za-z0-9][A-Za-z0-9._@-]*{_END}")
]
Prose = Annotated[str, Meta(max_length=1000)]
Size = Annotated[int, Meta(ge=1, le=10_000)]


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Root of the request bodies and queries."""


class NoBody(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request without a body."""


class NoQuery(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request without query parameters."""


class SiteQuery(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One site; all of them by default."""

    site: str | None = None


class SubmitBody(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job file as text (`file`), or the same as an object (`job`), with what goes along.

    Attributes:
        file: text of the job file; it may hold several jobs.
        job: one job, already parsed.
        source: name of the file, for messages and as the default name of the job.
        overrides: values that replace those of the file: `gpus`, `nodes`, `name`, `queue`,
            `priority`, `time`, `env`, `run`.
        secrets: values by name; kept beside the journal, never shown again.
        workdir: id of an uploaded snapshot.
        hold: whether the job waits for a release.
    """

    file: str | None = None
    job: dict[str, Any] | None = None
    source: Annotated[str, Meta(max_length=1000)] | None = None
    overrides: dict[str, Any] = {}
    secrets: dict[str, str] = {}
    workdir: Annotated[str, Meta(max_length=200)] | None = None
    hold: bool = False


class BatchBody(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Several submits, accepted or refused together."""

    jobs: Annotated[tuple[SubmitBody, ...], Meta(min_length=1, max_length=1000)]


class ReasonBody(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a person does something; shown in the story."""

    reason: Prose = ""


class PricesBody(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prices as the text of a CSV with `hour` and one of `gco2_per_kwh`, `usd_per_kwh`.

    What is known before its first hour stays; a file with its head alone forgets all.
    """

    file: str
    source: Annotated[str, Meta(max_length=1000)] | None = None


class HealthPlanBody(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the health policy by name; those not named stay."""

    settings: dict[str, str | int | float] = {}


class HealthPolicyBody(HealthPlanBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings to change. `if_version` refuses an edit of a stale version."""

    if_version: Annotated[int, Meta(ge=0)] | None = None


class PolicyBody(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy file as text.

    Attributes:
        source: name of the file, for messages.
        overcommit: allow guarantees above what the cluster has, as if the file said so.
    """

    file: str
    source: Annotated[str, Meta(max_length=1000)] | None = None
    overcommit: bool = False


class ShadowBody(PolicyBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy file as text, to run in shadow.

    Attributes:
        lag: how long the shadow waits for a run time before it guesses it, such as `1h`.
    """

    lag: str | None = None


class WhatIfBody(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to change about a waiting job, by name: `{"gpus": "4", "queue": "research"}`."""

    changes: Annotated[dict[str, Annotated[str, Meta(max_length=200)]], Meta(max_length=20)]


class ReservationBody(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Capacity to keep.

    Attributes:
        queue, user: the holder; one of them.
        gpus: how many devices, such as `H100:16`; or
        shape: whole domains by level, such as `{"node": 2}`, of devices of `type`.
        start: when the first window opens; now by default.
        duration: length of each window, such as `4h`.
        every: from one start to the next, such as `1d`; one window by default.
        until: no window starts at or after this instant.
        nodes: kept whole for work on them, for nobody's jobs: a maintenance window; `reason`
            says what for.
    """

    name: Name
    queue: Annotated[str, Meta(max_length=255)] | None = None
    user: Name | None = None
    gpus: Annotated[str, Meta(max_length=100)] | None = None
    type: Annotated[str, Meta(max_length=100)] | None = None
    shape: dict[str, int] = {}
    start: Instant | None = None
    duration: Annotated[str, Meta(max_length=64)]
    every: Annotated[str, Meta(max_length=64)] | None = None
    until: Instant | None = None
    nodes: tuple[Name, ...] = ()
    reason: Annotated[str, Meta(max_length=500)] = ""


class TopologyQuery(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which gangs and how much detail.

    Attributes:
        devices: devices of each task; all devices of a node by default.
        nodes: list the nodes one by one too.
        site: count the nodes of this site only.
    """

    devices: Annotated[int, Meta(ge=1, le=1024)] | None = None
    nodes: bool = False
    site: str | None = None


class ExecBody(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command to run inside a running task."""

    argv: Annotated[tuple[str, ...], Meta(min_length=1, max_length=1000)]
    task: Annotated[int, Meta(ge=0)] = 0
    terminal: bool = False
    rows: Size = 24
    columns: Size = 80


class ResizeBody(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """New size of a terminal."""

    rows: Size
    columns: Size


class TokenBody(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whom a new token stands for."""

    user: Name
    role: Role = Role.USER
    tenant: Name = "default"
    groups: Annotated[tuple[Name, ...], Meta(max_length=100)] = ()
    expires_s: Annotated[float, Meta(ge=0)] | None = None


class SignInBody(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a browser signs in with: a one-time code, or a token."""

    code: Annotated[str, Meta(max_length=200)] | None = None
    token: Annotated[str, Meta(max_length=200)] | None = None


class PageQuery(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Paging of a list."""

    limit: Limit = PAGE_ROWS
    after: Cursor | None = None


class SitePageQuery(PageQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Paging of a list of one site; of all of them by default."""

    site: str | None = None


class JobsQuery(PageQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which jobs.

    Attributes:
        state: states, separated by commas; ended jobs are shown when named here.
        queue: path; its sub-queues are included.
        user: who submitted them.
        all: ended jobs too.
        site: where they run or ran, or where they may start.
    """

    state: Annotated[str, Meta(description="states, separated by commas", max_length=200)] = ""
    queue: str | None = None
    user: str | None = None
    all: bool = False
    site: str | None = None

    @property
    def states(self) -> frozenset[str]:
        """The states asked for; empty for no choice."""
        return frozenset(filter(None, self.state.split(",")))


class LogsQuery(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which lines of a job's log.

    Attributes:
        task: one task; all of them by default.
        tail: only the last so many lines of each task.
        since: only lines written at or after this instant.
        follow: go on until the job has ended, over restarts of its tasks.
    """

    task: Annotated[int, Meta(ge=0)] | None = None
    tail: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    since: Instant | None = None
    follow: bool = False


class PolicyQuery(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which version of the policy; the one in force by default. `text` adds it as a file."""

    version: Annotated[int, Meta(ge=0)] | None = None
    text: bool = False


class NodesQuery(PageQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which nodes; `devices` adds labels and devices, and who holds them."""

    devices: bool = False
    site: str | None = None


class EventsQuery(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Events after the one with this sequence number.

    Attributes:
        views: in a stream, add the rows of the jobs and nodes that an event touched, and from
            time to time the queues as an event `board`.
        pause_s: in a stream, least time between two pieces; events of that time come together.
    """

    since: Annotated[int, Meta(ge=0, le=2**53)] = 0
    limit: Limit = PAGE_ROWS
    after: Cursor | None = None
    views: bool = False
    pause_s: Annotated[float, Meta(ge=0, le=10)] = 0.0


class UsageQuery(PageQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Use by `user` or `queue`, of jobs submitted at or after an instant."""

    by: Annotated[str, Meta(pattern=rf"^(user|queue){_END}", description="`user` or `queue`")] = (
        "user"
    )
    since: Instant | None = None


class MetricQuery(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which metric of devices."""

    metric: Metric = "utilization_ratio"


class QueuePastQuery(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Queues over time: one with its sub-queues, or all; since an instant, an hour by default."""

    queue: str | None = None
    since: Instant | None = None


class ReportQuery(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The usage report: by `user`, `queue` or `job`, of what was held since then, at a site."""

    by: Annotated[
        str, Meta(pattern=rf"^(user|queue|job){_END}", description="`user`, `queue` or `job`")
    ] = "user"
    since: Instant | None = None
    site: str | None = None


class RmaQuery(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Devices with faults since an instant."""

    since: Instant | None = None


JOB_STATES = tuple(state.value for state in JobState)
