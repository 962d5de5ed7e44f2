"""`tercio agent`."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tercio.cli.output import write
from tercio.cli.session import Session
from tercio.cli.verbs import Verb, pass_session
from tercio.errors import UserError

if TYPE_CHECKING:
    from tercio.agent.loop import Agent


@click.command(
    cls=Verb,
    examples="""
    tercio --url https://gpu.example.org:7400 --token-file /etc/tercio/agent agent
    tercio agent --node n7 --once               # one reading, told and done
    tercio agent --exporter 0.0.0.0:9400 --no-server
    """,
)
@click.option("--node", metavar="NAME", help="Name of this node; default: its host name.")
@click.option(
    "--state-dir",
    metavar="DIR",
    help="Keeps what it read, and set.",
)
@click.option(
    "--kernel-log", default="kmsg", metavar="kmsg|FILE", help="Which log; default: /dev/kmsg."
)
@click.option("--poll", default="10s", metavar="TIME", help="Until the server says otherwise.")
@click.option("--exporter", metavar="HOST:PORT", help="Serve /metrics there, with DCGM's names.")
@click.option(
    "--hpc-job-mapping-dir",
    "job_files",
    metavar="DIR",
    help="Write there which job holds which GPU, for a dcgm-exporter with this option.",
)
@click.option("--no-server", is_flag=True, help="Export only; tell no server.")
@click.option("--once", is_flag=True, help="Poll once and end; exit code 1 if it was not told.")
@pass_session
def command(
    session: Session,
    *,
    node: str | None,
    state_dir: str | None,
    kernel_log: str,
    poll: str,
    exporter: str | None,
    job_files: str | None,
    no_server: bool,
    once: bool,
) -> None:
    """Watch this node: devices, ports and kernel log, told to the server and to Prometheus.

    Its token (`tercio token create --agent NODE`) may report for that node
    and read, no more. Ctrl-C or SIGTERM ends it.
    """
    name = node or socket.gethostname()
    agent = _agent(
        session, name, state_dir=state_dir, kernel_log=kernel_log, poll=poll, is_mute=no_server,
        job_files=job_files,
    )  # fmt: skip
    close = None
    if exporter is not None:
        close = _export(agent, name, exporter, poll)
    try:
        if once:
            is_told = agent.poll()
            sys.exit(0 if is_told else 1)
        ending = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: ending.set())
        agent.run(ending)
    finally:
        agent.close()
        if close is not None:
            close()


def _agent(
    session: Session,
    name: str,
    *,
    state_dir: str | None,
    kernel_log: str,
    poll: str,
    is_mute: bool,
    job_files: str | None,
) -> Agent:
    from tercio.agent.loop import Agent
    from tercio.client.transport import Transport
    from tercio.collect.fault_table import load_fault_table
    from tercio.collect.job_files import JobFiles
    from tercio.collect.kernel_log import KernelLog
    from tercio.collect.power_limits import PowerLimits
    from tercio.collect.sampling import Sampler
    from tercio.collect.watch import Watcher
    from tercio.config import default_state_dir
    from tercio.model.units import parse_duration_s

    directory = Path(state_dir or default_state_dir(session.environment))
    directory.mkdir(parents=True, exist_ok=True)
    watcher = Watcher(
        table=load_fault_table(),
        sampler=Sampler(),
        log=KernelLog(kernel_log, cursor_file=directory / f"agent-{name}.cursor"),
        limits=PowerLimits(directory / f"agent-{name}.limits"),
        job_files=JobFiles(Path(job_files)) if job_files is not None else None,
    )
    tell: Callable[[bytes], bytes] | None = None
    if not is_mute:
        wire, path = Transport(session.client.address, timeout_s=30.0), _path(name)

        def tell(body: bytes) -> bytes:
            return wire.raw("POST", path, body=body)

    return Agent(
        watcher=watcher,
        tell=tell,
        poll_s=parse_duration_s(poll, field="--poll"),
        note=session.note,
    )


def _path(name: str) -> str:
    from tercio.client.transport import quote

    return f"/v1/nodes/{quote(name)}/readings"


def _export(agent: Agent, name: str, place: str, poll: str) -> Callable[[], None]:
    from tercio.agent.exporter import STALE_POLLS, NodeCollector, serve
    from tercio.model.units import parse_duration_s

    host, colon, port = place.rpartition(":")
    if not colon or not port.isdigit():
        raise UserError(f"--exporter {place}: not an address", hint="write it as 127.0.0.1:9400")
    stale_s = STALE_POLLS * parse_duration_s(poll)
    collector = NodeCollector(name, lambda: agent.newest, stale_s=stale_s)
    try:
        bound, close = serve(collector, host=host, port=int(port))
    except OSError as error:
        raise UserError(
            f"cannot listen on {place}: {os.strerror(error.errno or 0)}", code="unavailable"
        ) from None
    write(f"http://{host}:{bound}/metrics")
    sys.stdout.flush()
    return close
