"""The page on a stage: a simulated cluster with the jobs of the demo, on a stepped clock."""

from __future__ import annotations

import asyncio
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from tercio.api.connect import simulated_nodes
from tercio.api.serve import ApiServer, bind, running
from tercio.cli.commands.demo import NODES, SAMPLE
from tercio.client import Client, JobRequest
from tercio.config import Config, LocalConfig, ServerConfig
from tercio.core.cluster import Cluster
from tercio.engines.base import Engine
from tercio.engines.sim.engine import SimEngine
from tercio.model.ids import NodeName, SiteName
from tercio.model.node import NodeSpec
from tercio.model.readings import DeviceTelemetry, KernelLine, NodeReading
from tercio.model.resources import DeviceShare
from tercio.model.views import JobView
from tercio.runtime.clock import SteppedClock
from tercio.web.pages import page_routes

START_S = 1_790_000_000.0
TICK_S = 0.02
FILL_S = 120.0


def _is_decided(job: JobView) -> bool:
    return bool(job.reason) or job.state not in ("queued", "starting")


def with_serials(node: NodeSpec) -> NodeSpec:
    """Return a node whose devices have an identity, as real ones have."""
    devices = tuple(
        msgspec.structs.replace(
            device, uuid=f"GPU-{node.name}-{device.index}", serial=f"16503{node.name}{device.index}"
        )
        for device in node.devices
    )
    return msgspec.structs.replace(node, devices=devices)


def busy_devices(cluster: Cluster, node: str) -> list[DeviceShare]:
    """Return the shares of devices that jobs hold on a node."""
    return [
        share
        for job_id in cluster.jobs_on(NodeName(node))
        for task in cluster.jobs[job_id].live_tasks
        if task.placement.node == node
        for share in task.placement.devices
    ]


def reading(index: int, *, is_busy: bool, is_slow: bool, watts_now: float) -> dict[str, Any]:
    """Return plausible numbers of one device."""
    if not is_busy:
        return {
            "utilization_ratio": 0.0, "power_w": 72.0, "power_limit_w": 700.0,
            "temperature_c": 31.0 + index, "memory_used_bytes": 0,
            "memory_total_bytes": 80 * 2**30,
        }  # fmt: skip
    share = 0.58 if is_slow else 0.93
    return {
        "utilization_ratio": share + index * 0.005, "power_w": watts_now * share + 10 * index,
        "power_limit_w": 700.0, "temperature_c": (80.0 if is_slow else 58.0) + index,
        "memory_used_bytes": (61 + index % 3) * 2**30, "memory_total_bytes": 80 * 2**30,
    }  # fmt: skip


class Stage:
    """A server on a stepped clock. `cluster` is a shape or a file; the demo's by default.

    `more` are further sites by name, each a shape or a file. With a `base_path` it says to be
    reached below that, as through a proxy; `server` are settings of its own.
    """

    def __init__(
        self,
        state: Path,
        *,
        cluster: str = str(SAMPLE / "cluster.yaml"),
        more: Mapping[str, str] | None = None,
        base_path: str = "",
        **server: Any,
    ) -> None:
        self.clock = SteppedClock(START_S)
        self.base_path = base_path
        self.config = Config(
            state_dir=str(state),
            server=ServerConfig(port=0, **server),
            local=LocalConfig(enabled=False),
        )
        self._clusters = {"sim": cluster, **(more or {})}
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.server: ApiServer | None = None
        self._lines = 0

    def _engines(self) -> Mapping[SiteName, Engine]:
        engines: dict[SiteName, Engine] = {}
        for name, cluster in self._clusters.items():
            site = SiteName(name)
            nodes = [
                msgspec.structs.replace(with_serials(node), site=site)
                for node in simulated_nodes(cluster)
            ]
            engines[site] = SimEngine(site=site, nodes=nodes, clock=self.clock.now_s)
        return engines

    async def _main(self) -> None:
        try:
            listener = bind(self.config.server)
            if self.base_path:
                public = f"http://127.0.0.1:{listener.getsockname()[1]}{self.base_path}"
                below = msgspec.structs.replace(self.config.server, public_url=public)
                self.config = msgspec.structs.replace(self.config, server=below)
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
    def loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None
        return self._loop

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
        """Submit the jobs of the demo, and wait until each is decided.

        All but the first, which another one names, are decided in one cycle: where they run
        does not depend on how quick this machine is.
        """
        policy = self.policy_file()
        jobs = yaml.safe_load_all((SAMPLE / "jobs.yaml").read_text(encoding="utf-8"))
        first, *rest = [JobRequest(job=job, source="demo") for job in jobs]
        review = {"name": "waits-for-review", "run": "python deploy.py", "queue": "production"}
        rest.append(JobRequest(job=review, source="demo", hold=True))
        with self.client() as client:
            self.until(lambda: len(client.nodes().rows) == NODES)
            client.set_policy(policy, if_version=client.policy().version)
            ids = client.submit(first).ids
            self.until(lambda: client.job(ids[0]).state == "running")
            ids += client.submit_batch(rest).ids
            self.until(lambda: all(_is_decided(job) for job in client.jobs(limit=1000).rows))
        return list(ids)

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait for what the server decides."""
        deadline_s = time.monotonic() + FILL_S
        while not holds():
            assert time.monotonic() < deadline_s
            time.sleep(TICK_S)

    def step(self, seconds: float) -> None:
        """Let time pass."""
        assert self._loop is not None
        done = threading.Event()

        def move() -> None:
            self.clock.advance(self.clock.now_s() + seconds)
            done.set()

        self._loop.call_soon_threadsafe(move)
        assert done.wait(30)

    def read(
        self, node: str, *lines: str, watts_now: float = 400.0, slow: int | None = None
    ) -> None:
        """Report what the devices of a node say now; `slow` is a device that does less."""
        assert self.server is not None
        context = self.server.context
        spec = context.cluster.nodes[NodeName(node)].spec
        held = {device.index for device in busy_devices(context.cluster, node)}
        devices = tuple(
            DeviceTelemetry(
                index=device.index, uuid=device.uuid, serial=device.serial, name="H100 80GB HBM3",
                pci=f"00000000:{device.index + 16:02x}:00.0",
                **reading(device.index, is_busy=device.index in held, is_slow=device.index == slow,
                          watts_now=watts_now),
            )
            for device in spec.devices
        )  # fmt: skip
        self._lines += 1
        told = tuple(
            KernelLine(seq=self._lines * 10 + n, text=line) for n, line in enumerate(lines)
        )
        body = NodeReading(
            at_s=self.clock.now_s(), boot_id="b", driver="580.65", devices=devices, lines=told
        )
        asked = urllib.request.Request(
            f"{self.url}/v1/nodes/{node}/readings", data=msgspec.json.encode(body), method="POST",
            headers={"Authorization": f"Bearer {self.secret}"},
        )  # fmt: skip
        urllib.request.urlopen(asked).close()

    def measure(self, rounds: int = 12) -> None:
        """Let every node report a few times, half a minute apart; n2's device 5 is slow."""
        assert self.server is not None
        for number in range(rounds):
            if number:
                self.step(25)
            for name in list(self.server.context.cluster.nodes):
                self.read(
                    name, watts_now=400.0 + 15 * (number % 4), slow=5 if name == "n2" else None
                )
        progress = self.server.context.controller.progress
        asyncio.run_coroutine_threadsafe(progress.look(), self.loop).result(30)

    def policy_file(self) -> str:
        """The policy of the demo."""
        return (SAMPLE / "policy.yaml").read_text(encoding="utf-8")

    def submit(self, job: Mapping[str, Any], **more: Any) -> str:
        """Submit one job; returns its id."""
        with self.client() as client:
            return client.submit(JobRequest(job=dict(job), source="test", **more)).ids[0]

    def link(self, secret: str | None = None) -> str:
        """Return a fresh link that signs in once."""
        with Client(self.url, secret or self.secret) as client:
            return f"{self.url}{self.base_path}/signin#code={client.sign_in_code().code}"

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
