"""Rates and memory of a server process on loopback: `python -m bench.api`.

One server, simulated devices, held jobs; clients are processes of their own, because a client
in Python costs as much as the server does.
"""

from __future__ import annotations

import json
import multiprocessing
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

from bench.table import Row, markdown
from tercio.client import Client, JobRequest

PROGRAM = """
import sys
from tercio.api.serve import run_server
from tercio.config import load
flags = {"state_dir": sys.argv[1], "server.port": 0, "local.enabled": False, "sim.cluster": "8x8"}
run_server(load(flags, {}, ())[0])
"""
SECONDS = 3.0
BATCH = 100
CLIENTS = 8


@contextmanager
def server():
    """Run a server; yields its process id, URL and token."""
    with tempfile.TemporaryDirectory() as state:
        command = [sys.executable, "-c", PROGRAM, state]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            for line in process.stderr:
                if "api_started" in line:
                    break
            url = json.loads((Path(state) / "server.json").read_text())["url"]
            yield process.pid, url, (Path(state) / "token").read_text().strip()
            process.send_signal(signal.SIGTERM)
            process.stderr.read()


def job() -> JobRequest:
    return JobRequest(
        job={"name": "bench", "per_task": {"devices": "H100:1"}, "run": "true"}, hold=True
    )


def rss_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def per_second(call: Callable[[], object]) -> float:
    count, started_s = 0, time.perf_counter()
    while time.perf_counter() - started_s < SECONDS:
        call()
        count += 1
    return count / (time.perf_counter() - started_s)


def _submit_batches(url: str, token: str, count: int) -> None:
    with Client(url, token) as client:
        for _ in range(count):
            client.submit_batch([job() for _ in range(BATCH)])


def batched_per_second(url: str, token: str, *, batches: int = 3) -> float:
    """Return durable submits a second from `CLIENTS` processes."""
    context = multiprocessing.get_context("fork")
    workers = [
        context.Process(target=_submit_batches, args=(url, token, batches)) for _ in range(CLIENTS)
    ]
    started_s = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return CLIENTS * batches * BATCH / (time.perf_counter() - started_s)


def rows() -> list[Row]:
    """Measure everything once."""
    with server() as (pid, url, token), Client(url, token) as client:
        idle_mib = rss_mib(pid)
        name = client.submit_batch([job() for _ in range(30)]).ids[0]
        status = per_second(lambda: client.job(name))
        listed = per_second(lambda: client.jobs(limit=20))
        single = per_second(lambda: client.submit(job()))
        batched = batched_per_second(url, token)
    return [
        Row("server, idle: resident memory", f"{idle_mib:.0f} MiB", "100 MiB",
            "dstack 241, SkyPilot 953 MiB"),
        Row("status of one job, one client", f"{status:.0f}/s", "1000/s", "SkyPilot 2/s"),
        Row("list of 20 jobs, one client", f"{listed:.0f}/s", "1000/s"),
        Row("durable submits, one by one", f"{single:.0f}/s", "300/s"),
        Row(f"durable submits, {CLIENTS} clients in batches of {BATCH}", f"{batched:.0f}/s",
            "1000/s"),
    ]  # fmt: skip


if __name__ == "__main__":
    print(markdown("HTTP API", rows()))
