"""A real server: journal on disk, controller, engine, HTTP over loopback, in one thread."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from tercio.api.serve import ApiServer, bind, running
from tercio.client import Client, JobRequest
from tercio.config import Config, LocalConfig, ServerConfig
from tercio.engines.base import Engine
from tercio.engines.sim.engine import SimEngine
from tercio.engines.sim.script import Behaviour, Rule, SimScript
from tercio.model.events import Event, JobPlaced, JobWaited, NodeReported, subjects
from tercio.model.identity import Role
from tercio.model.ids import JobId, SiteName
from tercio.model.views import SubmitAnswer
from tercio.runtime.clock import Clock, SystemClock
from tercio.testing.factories import make_node

FOREVER_S = 1e9
QUICK = Behaviour(duration_s=0.0, lines=("one", "two"), line_every_s=0)
ENDLESS = Behaviour(duration_s=FOREVER_S, lines=("up",), line_every_s=0.05)
SCRIPT = SimScript(
    rules=(
        Rule(
            job="quick*", behaviour=Behaviour(duration_s=0.0, lines=("one", "two"), line_every_s=0)
        ),
        Rule(job="brief*", behaviour=Behaviour(duration_s=0.01)),
        Rule(job="*", behaviour=Behaviour(duration_s=FOREVER_S, lines=("up",), line_every_s=0.05)),
    )
)
SIM_NODES = ("n1", "n2")
MakeEngines = Callable[[Clock, Path], Mapping[SiteName, Engine]]


def sim_engines(clock: Clock, _: Path) -> Mapping[SiteName, Engine]:
    site = SiteName("sim")
    nodes = [make_node(name, devices=4, site="sim") for name in SIM_NODES]
    return {site: SimEngine(site=site, nodes=nodes, clock=clock.now_s, script=SCRIPT)}


class LiveServer:
    """Starts in `__enter__`, stops as on SIGTERM in `__exit__`."""

    def __init__(
        self,
        state: Path,
        *,
        engines: MakeEngines = sim_engines,
        nodes: tuple[str, ...] = SIM_NODES,
        **server: Any,
    ) -> None:
        self.nodes = nodes
        self.config = Config(
            state_dir=str(state),
            server=ServerConfig(port=0, **server),
            local=LocalConfig(enabled=False),
        )
        self._make_engines = engines
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.server: ApiServer | None = None
        self.failure: BaseException | None = None

    async def _main(self) -> None:
        try:
            listener = bind(self.config.server)
            clock = SystemClock()
            engines = self._make_engines(clock, self.config.state_path)
            async with running(self.config, listener, engines, clock=clock) as server:
                self._loop, self.server = asyncio.get_running_loop(), server
                self._ready.set()
                await server.serve(sockets=[listener])
        except BaseException as failure:
            self.failure = failure
            raise
        finally:
            self._ready.set()

    def __enter__(self) -> LiveServer:
        self._thread.start()
        assert self._ready.wait(30)
        assert self.failure is None, self.failure
        for node in self.nodes:
            self.wait_for(NodeReported, f"node/{node}")
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def stop(self) -> None:
        """Ask it to stop, as SIGTERM does."""
        assert self._loop is not None
        assert self.server is not None
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self.server.stop)

    def look(self) -> None:
        """Let running jobs be looked at now."""
        assert self._loop is not None
        assert self.server is not None
        progress = self.server.context.controller.progress
        asyncio.run_coroutine_threadsafe(progress.look(), self._loop).result(30)

    def read_prices(self) -> None:
        """Let the server read prices now."""
        assert self._loop is not None
        assert self.server is not None
        reading = self.server.context.prices.read()
        asyncio.run_coroutine_threadsafe(reading, self._loop).result(30)

    @property
    def url(self) -> str:
        assert self.server is not None
        return self.server.file.url

    @property
    def admin_secret(self) -> str:
        return (self.config.state_path / "token").read_text().strip()

    def wait_for(self, kind: type[Event], subject: str = "") -> Event:
        """Return the first event of a kind, of a job or node, when it is there."""
        with Client(self.url, self.admin_secret) as client, closing(client.follow_events()) as rows:
            return next(
                row.event
                for row in rows
                if isinstance(row.event, kind) and (not subject or subject in subjects(row.event))
            )

    def decided(self, answer: SubmitAnswer) -> JobId:
        """Return the last job of an answer when a cycle has placed or refused each of them."""
        with Client(self.url, self.admin_secret) as client, closing(client.follow_events()) as rows:
            left = set(answer.ids)
            while left:
                event = next(rows).event
                if isinstance(event, JobPlaced | JobWaited):
                    left -= set(subjects(event))
        return answer.ids[-1]

    def token(
        self,
        role: str = "user",
        *,
        user: str = "ana",
        tenant: str = "red",
        groups: tuple[str, ...] = (),
    ) -> str:
        """Return the secret of a new token."""
        with Client(self.url, self.admin_secret) as client:
            secret = client.create_token(user, role=role, tenant=tenant, groups=groups).secret
        assert secret is not None
        return secret

    def request(
        self,
        method: str,
        path: str,
        *,
        token: str | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send one request as it stands; `body` is bytes, or anything that becomes JSON."""
        host, _, port = self.url.removeprefix("http://").partition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        raw = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
        sent = dict(headers or {})
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        try:
            connection.request(method, path, body=raw, headers=sent)
            with connection.getresponse() as response:
                return Reply(response.status, dict(response.headers), response.read())
        finally:
            connection.close()


class Reply:
    """What came back."""

    def __init__(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.status = status
        self.headers = {name.lower(): value for name, value in headers.items()}
        self.content = content

    @property
    def body(self) -> Any:
        return json.loads(self.content)


def job(
    name: str = "train",
    *,
    gpus: str = "H100:1",
    hold: bool = False,
    secret_values: dict[str, str] | None = None,
    snapshot: str | None = None,
    overrides: dict[str, Any] | None = None,
    **fields: Any,
) -> JobRequest:
    """Return a request for a job that runs until it is stopped; `quick-*` ends at once."""
    rows = [f"name: {name}", f"per_task: {{devices: '{gpus}'}}", "run: 'true'"]
    rows += [f"{key}: {json.dumps(value)}" for key, value in fields.items()]
    return JobRequest(
        file="\n".join(rows),
        source="job.yaml",
        hold=hold,
        secrets=secret_values or {},
        workdir=snapshot,
        overrides=overrides or {},
    )


ROLES = tuple(role.value for role in Role)
