"""The page on a stage: a simulated cluster with the jobs of the demo, on a stepped clock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tercio.api.connect import simulated_nodes
from tercio.api.serve import ApiServer, bind, running
from tercio.cli.commands.demo import NODES, SAMPLE, fill
from tercio.client import Client, JobRequest
from tercio.config import Config, LocalConfig, ServerConfig
from tercio.engines.base import Engine
from tercio.engines.sim.engine import SimEngine
from tercio.model.ids import SiteName
from tercio.runtime.clock import SteppedClock
from tercio.web.pages import page_routes

START_S = 1_790_000_000.0
TICK_S = 0.02


class Stage:
    """A server on a stepped clock. `cluster` is a shape or a file; the demo's by default."""

    def __init__(self, state: Path, *, cluster: str = str(SAMPLE / "cluster.yaml")) -> None:
        self.clock = SteppedClock(START_S)
        self.config = Config(
            state_dir=str(state), server=ServerConfig(port=0), local=LocalConfig(enabled=False)
        )
        self._cluster = cluster
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.server: ApiServer | None = None

    def _engines(self) -> Mapping[SiteName, Engine]:
        site = SiteName("sim")
        nodes = simulated_nodes(self._cluster)
        return {site: SimEngine(site=site, nodes=nodes, clock=self.clock.now_s)}

    async def _main(self) -> None:
        try:
            listener = bind(self.config.server)
            async with running(
                self.config, listener, self._engines(), clock=self.clock, pages=page_routes
            ) as server:
                self._loop, self.server = asyncio.get_running_loop(), server
                self._ready.set()
                ticking = asyncio.ensure_future(self._tick())
                await server.serve(sockets=[listener])
                ticking.cancel()
        finally:
            self._ready.set()

    async def _tick(self) -> None:
        """Let time pass a little: the server puts some work off by fractions of a second."""
        while True:
            await asyncio.sleep(TICK_S)
            self.clock.advance(self.clock.now_s() + TICK_S)

    def __enter__(self) -> Stage:
        self._thread.start()
        assert self._ready.wait(60)
        assert self.server is not None
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        assert self.server is not None
        self._loop.call_soon_threadsafe(self.server.stop)
        self._thread.join(60)

    @property
    def url(self) -> str:
        assert self.server is not None
        return self.server.file.url

    @property
    def secret(self) -> str:
        return (self.config.state_path / "token").read_text().strip()

    def client(self) -> Client:
        return Client(self.url, self.secret)

    def fill(self) -> list[str]:
        """Submit the jobs of the demo, and wait until each is decided."""
        assert NODES == 8
        with self.client() as client:
            return fill(client, timeout_s=60)

    def step(self, seconds: float) -> None:
        """Let time pass."""
        assert self._loop is not None
        done = threading.Event()

        def move() -> None:
            self.clock.advance(self.clock.now_s() + seconds)
            done.set()

        self._loop.call_soon_threadsafe(move)
        assert done.wait(30)

    def submit(self, job: Mapping[str, Any], **more: Any) -> str:
        """Submit one job; returns its id."""
        with self.client() as client:
            return client.submit(JobRequest(job=dict(job), source="test", **more)).ids[0]

    def link(self, secret: str | None = None) -> str:
        """Return a fresh link that signs in once."""
        with Client(self.url, secret or self.secret) as client:
            return f"{self.url}/signin#code={client.sign_in_code().code}"

    def token(self, role: str, **owner: Any) -> str:
        with self.client() as client:
            secret = client.create_token(owner.pop("user", "ana"), role=role, **owner).secret
        assert secret is not None
        return secret

    @property
    def seq(self) -> int:
        with self.client() as client:
            return client.server().seq


def to_json(value: object) -> bytes:
    return msgspec.json.encode(value)
