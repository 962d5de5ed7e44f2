"""`tercio demo`."""

from __future__ import annotations

import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final

import click

from tercio.cli import tables
from tercio.cli.commands.up import start_in_background
from tercio.cli.local_server import read_server_file, stop_server
from tercio.cli.output import Output, show_list, write
from tercio.cli.progress import Progress
from tercio.cli.session import Session
from tercio.cli.verbs import Verb, pass_session
from tercio.client import Client, JobRequest
from tercio.errors import UserError
from tercio.web import is_built

SAMPLE: Final = Path(__file__).parents[1] / "sample"
NODES: Final = 8
_POLL_S: Final = 0.05

GUIDE: Final = """
Try these in another terminal; first tell it where the demo is:

{path}  export TERCIO_STATE_DIR={directory}

  tercio ps                              what runs, what waits and why
  tercio explain moe-pretrain            the true blocker, with its numbers
  tercio explain thesis-run              another reason
  tercio plan --gpus H100:8 --nodes 2 --no-workdir -- python train.py
  tercio submit --gpus H100:1 --no-workdir -- python train.py
  tercio show llama-pretrain             one job, its tasks and events
  tercio queue                           who may use what, and does
  tercio show llama-pretrain --steps     which rank is slow (one is, after some minutes)
  tercio node drain n5 --plan            what a drain would stop
  tercio top                             all of it, refreshed
{page}  tercio events -f                       the journal as it grows
"""


PAGE: Final = """\
  tercio web                             the same as a web page: open the link it prints
"""


@click.command(
    cls=Verb,
    examples="""
    tercio demo                  # until Ctrl-C
    tercio demo --exit           # show it once and end
    """,
)
@click.option("--exit", "is_once", is_flag=True, help="Show it once and end.")
@click.option("--timeout", "timeout_s", type=float, default=60.0, hidden=True)
@pass_session
def command(session: Session, *, is_once: bool, timeout_s: float) -> None:
    """Try everything on a simulated cluster of 64 GPUs. Nothing outside a temporary directory.

    Starts a server of its own on a free port, with 8 nodes of 8 H100 in two racks, three queues
    and sixteen jobs, and says what to try. The devices report readings; all of them are simulated.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    directory = tempfile.mkdtemp(prefix="tercio-demo-")
    try:
        _start(session, directory, timeout_s=timeout_s)
        with Progress(session, "filling the cluster"):
            fill(session.client, timeout_s=timeout_s)
        write("A simulated cluster of 64 H100 on 8 nodes, with 16 jobs in 3 queues:\n")
        pages = session.fetch_pages("/v1/jobs")
        show_list(session, Output(), tables.jobs(session), pages)
        if not is_once:
            guide = GUIDE.format(
                path=_path_hint(), directory=directory, page=PAGE if is_built() else ""
            )
            write(guide.rstrip())
            sys.stdout.flush()
            session.note("\nCtrl-C ends the demo and removes it.")
            signal.pause()
    finally:
        found = read_server_file(directory)
        if found is not None:
            stop_server(found, timeout_s=timeout_s)
        shutil.rmtree(directory, ignore_errors=True)


def _path_hint() -> str:
    """Return the line that lets another terminal find `tercio`, where it may not by itself.

    In a virtual environment this terminal was told where it is, and another one was not.
    """
    if sys.prefix == sys.base_prefix and shutil.which("tercio") is not None:
        return ""
    return f"  export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH\n"


def _end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    """End as Ctrl-C does, so that neither server nor directory stays behind."""
    raise KeyboardInterrupt


def fill(client: Client, *, timeout_s: float) -> list[str]:
    """Put the sample policy in force, submit the sample jobs and wait until all are decided.

    Returns:
        The ids, in order of submission.

    Raises:
        UserError: `timed_out` when the simulated nodes do not report, or nothing is decided.
    """
    import yaml

    _until(lambda: len(client.nodes().rows) == NODES, "the simulated nodes", timeout_s)
    policy = (SAMPLE / "policy.yaml").read_text(encoding="utf-8")
    client.set_policy(policy, if_version=client.policy().version)
    text = (SAMPLE / "jobs.yaml").read_text(encoding="utf-8")
    requests = [JobRequest(job=job, source="demo") for job in yaml.safe_load_all(text)]
    # One by one: the dependency names a job that must be there.
    ids = [job_id for request in requests for job_id in client.submit(request).ids]
    ids.extend(_hold_one(client))
    _until(lambda: _is_decided(client), "a decision on every job", timeout_s)
    return ids


def _hold_one(client: Client) -> tuple[str, ...]:
    request = JobRequest(
        job={"name": "waits-for-review", "run": "python deploy.py", "queue": "production"},
        source="demo",
        hold=True,
    )
    return client.submit(request).ids


def _is_decided(client: Client) -> bool:
    jobs = client.jobs().rows
    return all(job.reason or job.state not in ("queued", "starting") for job in jobs)


def _until(holds: Callable[[], bool], what: str, timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline_s:
            raise UserError(
                f"the demo waited {timeout_s:.0f}s for {what}",
                code="timed_out",
                hint="run it again with --debug, and report the end of its log",
            )
        time.sleep(_POLL_S)


def _start(session: Session, directory: str, *, timeout_s: float) -> None:
    from tercio.config import load

    flags: dict[str, object] = {
        "state_dir": directory,
        "server.host": "127.0.0.1",
        "server.port": 0,
        "sim.cluster": str(SAMPLE / "cluster.yaml"),
        "sim.readings": True,
        "local.enabled": False,
    }
    config, _ = load(flags, session.environment)
    found = start_in_background(session, config, flags, timeout_s=timeout_s)
    session.url, session.token_file = found.url, str(Path(directory) / "token")
