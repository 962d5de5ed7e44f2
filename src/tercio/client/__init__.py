"""The Python client: every request of the HTTP API as one typed method.

>>> from tercio import Client
>>> client = Client("http://127.0.0.1:7400", token="secret")

Answers are the bodies of `tercio.model.views`. Every refusal is a `UserError` whose code, hint
and field are the server's own; a server that cannot be reached is one with the code
`unavailable`. A client keeps one connection and is not for use from several threads at once;
streams open their own connections, so that one may be read while other requests are made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, Protocol, TypeVar

import msgspec

from tercio.client.discovery import Address, find_server
from tercio.client.sharing import SharingRequests
from tercio.client.streams import RemoteCommand, follow_events, follow_log
from tercio.client.transport import Query, StreamEvent, Transport, quote
from tercio.errors import UserError
from tercio.model.health_views import LiveList, LiveNode, NodeHealthView
from tercio.model.report_views import JobUse
from tercio.model.views import (
    DecisionView,
    EventList,
    EventView,
    ExecView,
    HealthView,
    JobList,
    JobView,
    LogView,
    NodeList,
    NodeView,
    PlanView,
    QueueList,
    QueueView,
    ServerView,
    SignInCodeView,
    Story,
    SubmitAnswer,
    TokenList,
    TokenView,
    UsageList,
    WorkdirView,
)

__all__ = [
    "Address",
    "Client",
    "JobRequest",
    "RemoteCommand",
    "StreamEvent",
    "find_server",
]


_BACKUP_S = 600.0


class JobRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What to submit, or to plan.

    Attributes:
        file: text of a job file; or
        job: the same, already parsed to an object.
        source: name of the file, used in messages and as the default name of the job.
        overrides: values that replace those of the file: `gpus`, `nodes`, `name`, `queue`,
            `priority`, `time`, `env`, `run`.
        secrets: values by name; they never come back from the server.
        workdir: id of an uploaded snapshot.
        hold: whether the job waits for a release.
    """

    file: str | None = None
    job: dict[str, Any] | None = None
    source: str | None = None
    overrides: dict[str, Any] = {}
    secrets: dict[str, str] = {}
    workdir: str | None = None
    hold: bool = False


class _Page(Protocol):
    @property
    def next(self) -> str | None: ...


P = TypeVar("P", bound=_Page)


class Client(SharingRequests):
    """A connection to one Tercio server.

    Args:
        url: of the server; by default `TERCIO_URL`, else the server on this machine.
        token: secret to present; by default `TERCIO_TOKEN`, else this machine's admin token.
        timeout_s: longest wait for one answer.
        reconnect_s: how long a followed stream waits for a server that went away.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout_s: float = 30.0,
        reconnect_s: float = 60.0,
    ) -> None:
        self.address = find_server(url, token)
        self.reconnect_s = reconnect_s
        self._transport = Transport(self.address, timeout_s=timeout_s)

    def close(self) -> None:
        """Close the kept-alive connection."""
        self._transport.close()

    def __enter__(self) -> Client:
        """Return the client itself; leaving the block closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the kept-alive connection."""
        self.close()

    # Jobs

    def submit(self, request: JobRequest, *, key: str | None = None) -> SubmitAnswer:
        """Submit what one file describes; all of its jobs or none.

        Args:
            request: the job file or object, with what goes along.
            key: repeated by the caller, it returns the first answer again instead of a second
                job. By default a fresh one, so that a lost answer may be asked for again.
        """
        return self._submit("/v1/jobs", request, key)

    def submit_batch(
        self, requests: Sequence[JobRequest], *, key: str | None = None
    ) -> SubmitAnswer:
        """Submit up to 1,000 requests in one; all of their jobs or none."""
        return self._submit("/v1/jobs/batch", {"jobs": list(requests)}, key)

    def plan(self, request: JobRequest) -> PlanView:
        """Say what would happen to a job if it were submitted now; changes nothing."""
        return self._transport.call("POST", "/v1/plan", PlanView, body=request)

    def jobs(
        self,
        *,
        states: Iterable[str] = (),
        queue: str | None = None,
        user: str | None = None,
        site: str | None = None,
        is_all: bool = False,
        limit: int | None = None,
        after: str | None = None,
    ) -> JobList:
        """Return a page of jobs, newest first; ended ones too with `is_all` or by state."""
        query: Query = {
            "state": tuple(states) or None,
            "queue": queue,
            "user": user,
            "site": site,
            "all": is_all or None,
            "limit": limit,
            "after": after,
        }
        return self._transport.call("GET", "/v1/jobs", JobList, query=query)

    def every_job(self, **filters: Any) -> Iterator[JobView]:
        """Yield the jobs of every page; takes the filters of `jobs`."""
        return (row for page in _pages(self.jobs, filters) for row in page.rows)

    def job(self, job_id: str) -> JobView:
        """Return one job with its spec and tasks."""
        return self._transport.call("GET", _job_path(job_id), JobView)

    def decision(self, job_id: str) -> DecisionView:
        """Return why a job waits, or was placed."""
        return self._transport.call("GET", _job_path(job_id, "decision"), DecisionView)

    def what_if(self, job_id: str, changes: Mapping[str, str]) -> PlanView:
        """Say what would happen to a waiting job with changes such as `{"gpus": "4"}`."""
        body = {"changes": dict(changes)}
        return self._transport.call("POST", _job_path(job_id, "what-if"), PlanView, body=body)

    def story(self, job_id: str) -> Story:
        """Return everything that happened to a job, oldest first."""
        return self._transport.call("GET", _job_path(job_id, "story"), Story)

    def cancel(self, job_id: str, *, reason: str = "") -> JobView:
        """Stop a job for good."""
        return self._command(_job_path(job_id, "cancel"), {"reason": reason})

    def hold(self, job_id: str) -> JobView:
        """Keep a waiting job from starting."""
        return self._command(_job_path(job_id, "hold"))

    def release(self, job_id: str) -> JobView:
        """Let a held job start."""
        return self._command(_job_path(job_id, "release"))

    def requeue(self, job_id: str) -> JobView:
        """Stop a job, or take an ended one, and run it again from the queue."""
        return self._command(_job_path(job_id, "requeue"))

    def suspend(self, job_id: str) -> JobView:
        """Pause a running job; it keeps what it holds."""
        return self._command(_job_path(job_id, "suspend"))

    def resume(self, job_id: str) -> JobView:
        """Let a paused job go on."""
        return self._command(_job_path(job_id, "resume"))

    def logs(
        self,
        job_id: str,
        *,
        task: int | None = None,
        tail: int | None = None,
        since_s: float | None = None,
        is_following: bool = False,
    ) -> Iterator[LogView]:
        """Yield the lines of a job's log: of one task, or of all of them as they come.

        While following, a server that restarts is waited for, and no line comes twice.
        """
        query: dict[str, object] = {
            "task": task,
            "tail": tail,
            "since": since_s,
            "follow": is_following or None,
        }
        path = _job_path(job_id, "logs")
        return follow_log(self._transport, path, query, reconnect_s=self.reconnect_s)

    def execute(
        self,
        job_id: str,
        argv: Sequence[str],
        *,
        task: int = 0,
        has_terminal: bool = False,
        rows: int = 24,
        columns: int = 80,
    ) -> RemoteCommand:
        """Start a command inside a running task."""
        body = {
            "task": task,
            "argv": list(argv),
            "terminal": has_terminal,
            "rows": rows,
            "columns": columns,
        }
        view = self._transport.call("POST", _job_path(job_id, "exec"), ExecView, body=body)
        return RemoteCommand(self._transport, view.exec)

    # Nodes, queues

    def nodes(self, *, limit: int | None = None, after: str | None = None) -> NodeList:
        """Return a page of nodes, in order of first report."""
        query: Query = {"limit": limit, "after": after}
        return self._transport.call("GET", "/v1/nodes", NodeList, query=query)

    def every_node(self) -> Iterator[NodeView]:
        """Yield the nodes of every page."""
        return (row for page in _pages(self.nodes, {}) for row in page.rows)

    def node(self, name: str) -> NodeView:
        """Return one node with its devices."""
        return self._transport.call("GET", _node_path(name), NodeView)

    def node_story(self, name: str) -> Story:
        """Return everything that happened to a node, oldest first."""
        return self._transport.call("GET", _node_path(name, "story"), Story)

    def cordon(self, name: str, *, reason: str = "") -> NodeView:
        """Keep new work off a node."""
        return self._node_command(name, "cordon", reason)

    def uncordon(self, name: str) -> NodeView:
        """Let new work go to a node again."""
        return self._node_command(name, "uncordon", "")

    def drain(self, name: str, *, reason: str = "") -> NodeView:
        """Empty a node: stop its jobs with grace and requeue them."""
        return self._node_command(name, "drain", reason)

    def queues(
        self, *, site: str | None = None, limit: int | None = None, after: str | None = None
    ) -> QueueList:
        """Return a page of queues, parents before children; what runs and waits of a site."""
        query: Query = {"site": site, "limit": limit, "after": after}
        return self._transport.call("GET", "/v1/queues", QueueList, query=query)

    def every_queue(self) -> Iterator[QueueView]:
        """Yield the queues of every page."""
        return (row for page in _pages(self.queues, {}) for row in page.rows)

    def queue(self, path: str) -> QueueView:
        """Return one queue by its path, such as `research/nlp`."""
        segments = "/".join(quote(part) for part in path.split("/"))
        return self._transport.call("GET", f"/v1/queues/{segments}", QueueView)

    # Events, usage, the server

    def events(self, *, since: int = 0, limit: int | None = None) -> EventList:
        """Return a page of the events after `since`, oldest first."""
        query: Query = {"since": since, "limit": limit}
        return self._transport.call("GET", "/v1/events", EventList, query=query)

    def follow_events(self, *, since: int = 0) -> Iterator[EventView]:
        """Yield every event after `since` as it happens, over restarts of the server."""
        return follow_events(self._transport, since=since, reconnect_s=self.reconnect_s)

    def usage(self, *, by: str = "user", since_s: float | None = None) -> UsageList:
        """Return device time by `user` or `queue`."""
        query: Query = {"by": by, "since": since_s}
        return self._transport.call("GET", "/v1/usage", UsageList, query=query)

    def server(self) -> ServerView:
        """Return facts of the server itself."""
        return self._transport.call("GET", "/v1/server", ServerView)

    def job_use(self, job_id: str) -> JobUse:
        """Return where the device time of a job went, and its devices now."""
        return self._transport.call("GET", _job_path(job_id, "use"), JobUse)

    def node_health(self, name: str) -> NodeHealthView:
        """Return where a node stands, its faults, and what its devices say now."""
        return self._transport.call("GET", _node_path(name, "health"), NodeHealthView)

    def live(self, *, limit: int | None = None, after: str | None = None) -> LiveList:
        """Return a page of nodes as their devices are now."""
        query: Query = {"limit": limit, "after": after}
        return self._transport.call("GET", "/v1/live", LiveList, query=query)

    def every_live(self) -> Iterator[LiveNode]:
        """Yield all nodes as their devices are now."""
        return (row for page in _pages(self.live, {}) for row in page.rows)

    def health(self) -> HealthView:
        """Return whether the server answers; needs no token."""
        return self._transport.call("GET", "/v1/health", HealthView)

    def metrics(self) -> str:
        """Return the metrics in Prometheus text format."""
        return self._transport.raw("GET", "/metrics", headers={"Accept": "text/plain"}).decode()

    def schema(self) -> dict[str, Any]:
        """Return the OpenAPI document of the server."""
        return self._transport.call("GET", "/schema", dict[str, Any])

    def backup(self, target: IO[bytes]) -> int:
        """Write a consistent copy of the journal to `target`; return its size in bytes."""
        return self._transport.save("/v1/backup", target, timeout_s=_BACKUP_S)

    def snapshot(self, target: IO[bytes]) -> int:
        """Write the state for `tercio twin run` to `target`; return its size in bytes."""
        return self._transport.save("/v1/snapshot", target, timeout_s=_BACKUP_S)

    def upload_workdir(self, archive: bytes | IO[bytes]) -> str:
        """Store a snapshot of a directory (tar.gz); return its id for submit requests."""
        headers = {}
        if not isinstance(archive, bytes):
            start = archive.tell()
            headers["Content-Length"] = str(archive.seek(0, os.SEEK_END) - start)
            archive.seek(start)
        raw = self._transport.raw(
            "POST", "/v1/workdirs", body=archive, headers=headers, content_type="application/gzip"
        )
        return msgspec.json.decode(raw, type=WorkdirView).workdir

    # Tokens

    def tokens(self) -> TokenList:
        """Return all tokens, without their secrets."""
        return self._transport.call("GET", "/v1/tokens", TokenList)

    def create_token(
        self,
        user: str,
        *,
        role: str = "user",
        tenant: str = "default",
        groups: Sequence[str] = (),
        expires_s: float | None = None,
    ) -> TokenView:
        """Create a token; its `secret` is in this answer and nowhere else."""
        body: Mapping[str, object] = {
            "user": user,
            "role": role,
            "tenant": tenant,
            "groups": list(groups),
            "expires_s": expires_s,
        }
        return self._transport.call("POST", "/v1/tokens", TokenView, body=body)

    def sign_in_code(self) -> SignInCodeView:
        """Make a code that signs a browser in once, as the owner of this client's token."""
        return self._transport.call("POST", "/v1/session/codes", SignInCodeView, body={})

    def has_page(self) -> bool:
        """Whether the server serves the web page: a checkout may not have built it."""
        try:
            self._transport.raw("GET", "/signin")
        except UserError as error:
            if error.code == "unavailable":
                raise
            return False
        return True

    def revoke_token(self, token_id: str) -> None:
        """Refuse a token from now on."""
        self._transport.raw("DELETE", f"/v1/tokens/{quote(token_id)}")

    def _submit(self, path: str, body: object, key: str | None) -> SubmitAnswer:
        headers = {"Idempotency-Key": key or os.urandom(16).hex()}
        for is_last in (False, True):
            try:
                return self._transport.call("POST", path, SubmitAnswer, body=body, headers=headers)
            except UserError as error:
                # The key makes it safe to ask again when only the answer was lost.
                if is_last or error.code != "unavailable":
                    raise
        raise AssertionError("unreachable")

    def _command(self, path: str, body: Mapping[str, object] | None = None) -> JobView:
        return self._transport.call("POST", path, JobView, body=body or {})

    def _node_command(self, name: str, verb: str, reason: str) -> NodeView:
        body = {"reason": reason} if reason else {}
        return self._transport.call("POST", _node_path(name, verb), NodeView, body=body)


def _job_path(job_id: str, verb: str | None = None) -> str:
    return f"/v1/jobs/{quote(job_id)}" + (f"/{verb}" if verb else "")


def _node_path(name: str, verb: str | None = None) -> str:
    return f"/v1/nodes/{quote(name)}" + (f"/{verb}" if verb else "")


def _pages(fetch: Callable[..., P], filters: Mapping[str, Any]) -> Iterator[P]:
    after: str | None = None
    while True:
        page = fetch(**{"limit": 1000, **filters, "after": after})
        yield page
        after = page.next
        if after is None:
            return
