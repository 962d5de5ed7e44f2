"""The server process: journal, engines, controller and API on one event loop.

Order of the start: the journal is locked (a second server stops here), the port is bound, the
controller replays and adopts what runs, requests are taken, and then `server.json` says where.
SIGTERM and SIGINT stop taking requests, end the open ones, and leave the jobs running.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
import os
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import uvicorn
from litestar.handlers import HTTPRouteHandler

import tercio
from tercio import logs
from tercio.api.app import below, create_app
from tercio.api.auth import Authenticator, admin_token
from tercio.api.children import Children
from tercio.api.connect import LOCAL, SIM, make_engines
from tercio.api.context import ApiContext
from tercio.api.execs import ExecSessions
from tercio.api.live import Frames
from tercio.api.policy_shadow import PolicyShadow
from tercio.api.sessions import Sessions
from tercio.api.twin_runs import TwinRuns
from tercio.config import Config, ServerConfig
from tercio.core.ledger import FIRST_PORT, LAST_PORT, PORTS_PER_TASK
from tercio.core.shares import queue_views
from tercio.engines.base import Engine
from tercio.errors import UserError
from tercio.logs import facts
from tercio.model.ids import SiteName
from tercio.runtime.clock import Clock, SystemClock
from tercio.runtime.controller import Controller
from tercio.runtime.faults import FaultPoints
from tercio.runtime.metering import METERS, QUEUES, KeptFiles
from tercio.runtime.otlp import Pusher, make_exporter
from tercio.runtime.prices import PriceReader
from tercio.runtime.queue_past import QueuePasts
from tercio.runtime.simulated import SimulatedReadings
from tercio.runtime.watching import Watching
from tercio.store.journal import Journal
from tercio.store.workdirs import WorkdirStore

DRAIN_S: Final = 10
_BACKLOG: Final = 512

MakePages = Callable[[ApiContext], Sequence[HTTPRouteHandler]]

_log = logging.getLogger(__name__)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server bound to `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_bind(server: ServerConfig) -> None:
    """Raise unless tokens sent to this address cannot be read on the way.

    Raises:
        UserError: for a non-loopback address without TLS and without a trusted proxy.
    """
    if is_loopback(server.host) or server.tls_cert or server.trusted_proxy:
        return
    raise UserError(
        f"server.host: {server.host} can be reached from other machines, and tokens would cross "
        "the network in clear",
        field="server.host",
        hint="set server.tls_cert and server.tls_key, or server.trusted_proxy to the address of "
        "the proxy that ends TLS, or bind to 127.0.0.1",
    )


def bind(server: ServerConfig) -> socket.socket:
    """Bind and listen.

    Raises:
        UserError: `unavailable` when the address is in use or not of this machine.
    """
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    # The protocol is named because asyncio turns Nagle's delay off only where it is: without
    # it, every answer on a kept-alive connection would wait 40 ms for an acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((server.host, server.port))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise UserError(
            f"cannot listen on {server.host} port {server.port}: {error.strerror or error}",
            code="unavailable",
            field="server.port",
            hint="another server may run there; choose one with --port, or 0 for any free port",
        ) from None
    return listener


def server_url(server: ServerConfig, port: int) -> str:
    """Return the URL by which this machine reaches the server."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(server.host, server.host)
    scheme = "https" if server.tls_cert else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class ServerFile:
    """`server.json`, there while the server takes requests."""

    def __init__(self, path: Path, url: str) -> None:
        self._path = path
        self.url = url

    def write(self) -> None:
        """Say where the server is, in one step: a reader sees all of it or none."""
        part = self._path.with_name(self._path.name + ".new")
        part.write_text(json.dumps({"url": self.url, "pid": os.getpid()}) + "\n", encoding="utf-8")
        part.replace(self._path)

    def remove(self) -> None:
        """Remove the file, unless another server has written its own since."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            if json.loads(self._path.read_text(encoding="utf-8"))["pid"] == os.getpid():
                self._path.unlink()


class ApiServer(uvicorn.Server):
    """uvicorn with our signals: it stops by `stop`, and streams end when it does."""

    def __init__(self, config: uvicorn.Config, *, context: ApiContext, file: ServerFile) -> None:
        super().__init__(config)
        self.context = context
        self.file = file
        self.on_ready: Callable[[ApiServer], None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to `run_server`: uvicorn would raise them again before the end."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Take requests, then say where."""
        await super().startup(sockets)
        if self.started:
            await asyncio.to_thread(self.file.write)
            _log.info("api_started", extra=facts(url=self.file.url, pid=os.getpid()))
            if self.on_ready is not None:
                self.on_ready(self)

    def stop(self) -> None:
        """Take no more requests; finish those that are open."""
        self.context.stopping.set()
        self.should_exit = True


@contextlib.asynccontextmanager
async def running(
    config: Config,
    listener: socket.socket,
    engines: Mapping[SiteName, Engine] | None = None,
    *,
    clock: Clock | None = None,
    faults: FaultPoints | None = None,
    pages: MakePages | None = None,
) -> AsyncIterator[ApiServer]:
    """Run everything behind the API; yields the HTTP server, to be started by `serve`.

    Args:
        config: of the process.
        listener: listening; closed by the server.
        engines: by site; those of the configuration by default.
        clock: the machine's by default.
        faults: points at which a test can kill the server; none by default.
        pages: makes the handlers of the web page; none by default.

    Raises:
        StoreError: the journal is in use by another server, or damaged.
        UserError: a configuration that cannot work.
    """
    clock = clock or SystemClock()
    _make_state_directory(config.state_path)
    journal = await asyncio.to_thread(Journal.open, config.state_path / "journal.db")
    try:
        if engines is None:
            workdirs = WorkdirStore(config.state_path / "workdirs")
            engines = make_engines(config, clock=clock.now_s, workdir_of=workdirs.path)
        version = tercio.__version__
        controller = Controller(
            journal,
            engines,
            config,
            clock,
            version=version,
            first_port=_draw_port(),
            faults=faults,
        )
        async with _beside(config, controller, clock) as beside:
            context = _context(config, controller, journal, clock, beside)
            await _resume_shadow(context)
            yield _make_server(context, listener, pages(context) if pages else ())
    finally:
        await asyncio.to_thread(journal.close)


async def _resume_shadow(context: ApiContext) -> None:
    """Run the policy that the configuration wants in shadow, or that ran so before."""
    shadow, path = context.policy_shadow, context.config.shadow.policy
    kept = await asyncio.to_thread(shadow.kept)
    if path:
        text = await asyncio.to_thread(_text_of, path)
        if kept is None or kept.file != text:
            source, now_s = os.path.basename(path), context.now()
            await shadow.start(text, source=source, by="configuration", at_s=now_s)
            return
    if kept is not None:
        await shadow.go_on(kept)


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"shadow.policy: cannot read {path}: {error}",
            field="shadow.policy",
            hint="name a policy file, or leave the setting out",
        ) from error


def _pusher(config: Config, controller: Controller, clock: Clock) -> Pusher | None:
    """Return what sends metrics to the OpenTelemetry collector of the configuration, if any."""
    if not config.health.otlp:
        return None
    return Pusher(
        make_exporter(config.health.otlp),
        controller.metrics.registry,
        now=clock.now_s,
        every_s=config.health.otlp_every_s,
        resource={"service.name": "tercio", "service.version": tercio.__version__},
    )


class _Beside(NamedTuple):
    """What queues were like before, and who reads prices."""

    queues: QueuePasts
    prices: PriceReader


@contextlib.asynccontextmanager
async def _beside(config: Config, controller: Controller, clock: Clock) -> AsyncIterator[_Beside]:
    """Run the controller and what watches beside it; yields what routes read of that."""
    queues = QueuePasts(lambda: queue_views(controller.driver, clock.now_s()), clock)
    kept = KeptFiles(config.state_path, {METERS: controller.telemetry, QUEUES: queues})
    await asyncio.to_thread(kept.load)
    pusher = _pusher(config, controller, clock)
    await controller.start()
    watching = Watching(config, controller, site=LOCAL)
    invented = SimulatedReadings(
        cluster=lambda: controller.driver.cluster,
        telemetry=controller.telemetry,
        now=clock.now_s,
        site=SIM,
        poll_s=config.health.poll_s,
    )
    prices = PriceReader(
        config.health.prices,
        cluster=lambda: controller.driver.cluster,
        deliver=controller.observe,
        now=clock.now_s,
    )
    try:
        if config.local.enabled:
            watching.start()
        if config.sim.readings:
            invented.start()
        controller.progress.start()
        controller.powering.start()
        prices.start()
        if pusher is not None:
            pusher.start()
        queues.start()
        kept.start()
        yield _Beside(queues, prices)
    finally:
        if pusher is not None:
            await pusher.stop()
        await prices.stop()
        await controller.powering.stop()
        await controller.progress.stop()
        await watching.stop()
        await invented.stop()
        await queues.stop()
        await kept.stop()
        await controller.stop()


def _draw_port() -> int:
    """Return where this run begins to hand out rendezvous ports: rarely where another does."""
    places = (LAST_PORT - FIRST_PORT + 1) // PORTS_PER_TASK
    return FIRST_PORT + secrets.randbelow(places) * PORTS_PER_TASK


def _make_state_directory(path: Path) -> None:
    """Create the state directory; tasks that run as other users may pass through, not look.

    What is secret in it is for its owner only by itself: journal, token, secrets, workdirs.
    """
    if not path.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o711)


def _context(
    config: Config, controller: Controller, journal: Journal, clock: Clock, beside: _Beside
) -> ApiContext:
    secret = admin_token(config.state_path / "token")
    auth = Authenticator(
        admin_secret=secret,
        tokens=lambda: controller.driver.cluster.tokens,
        now=clock.now_s,
    )
    return ApiContext(
        controller=controller,
        journal=journal,
        auth=auth,
        sessions=Sessions(auth=auth, admin_secret=secret, server=config.server, now=clock.now_s),
        frames=Frames(),
        execs=ExecSessions(),
        children=Children(),
        twin_runs=TwinRuns(),
        policy_shadow=PolicyShadow(config.state_path),
        queues=beside.queues,
        prices=beside.prices,
        config=config,
        now=clock.now_s,
        started_s=clock.now_s(),
        stopping=asyncio.Event(),
    )


def _make_server(
    context: ApiContext, listener: socket.socket, pages: Sequence[HTTPRouteHandler]
) -> ApiServer:
    server = context.config.server
    app = create_app(context, pages)
    settings = uvicorn.Config(
        below(app, context.sessions.base_path),
        loop="asyncio",
        http="httptools",
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        ssl_certfile=server.tls_cert or None,
        ssl_keyfile=server.tls_key or None,
        proxy_headers=bool(server.trusted_proxy),
        forwarded_allow_ips=server.trusted_proxy or None,
        timeout_graceful_shutdown=DRAIN_S,
        timeout_keep_alive=75,
    )
    url = server_url(server, listener.getsockname()[1])
    file = ServerFile(context.config.state_path / "server.json", url)
    return ApiServer(settings, context=context, file=file)


def run_server(
    config: Config,
    *,
    faults: FaultPoints | None = None,
    pages: MakePages | None = None,
    on_ready: Callable[[ApiServer], None] | None = None,
) -> None:
    """Run the server until SIGTERM or SIGINT; jobs go on after it. `faults` are for tests.

    `pages` makes the handlers of the web page; `on_ready` is called when requests are taken.

    Raises:
        UserError: it cannot start as configured.
        StoreError: the journal cannot be used.
    """
    logs.configure(config.log.level, config.log.format)
    check_bind(config.server)
    listener = bind(config.server)
    try:
        asyncio.run(_run(config, listener, faults, pages, on_ready))
    finally:
        listener.close()


async def _run(
    config: Config,
    listener: socket.socket,
    faults: FaultPoints | None,
    pages: MakePages | None,
    on_ready: Callable[[ApiServer], None] | None,
) -> None:
    async with running(config, listener, faults=faults, pages=pages) as server:
        server.on_ready = on_ready
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, server.stop)
        broken = asyncio.ensure_future(server.context.controller.failed())
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        try:
            await asyncio.wait({broken, serving}, return_when=asyncio.FIRST_COMPLETED)
            server.stop()
            await serving
        finally:
            server.file.remove()
        if broken.done():
            # A bug stopped the writer; the process ends with its message and its traceback.
            broken.result()
        broken.cancel()
