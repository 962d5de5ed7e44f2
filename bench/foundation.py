"""Start-up, memory, requests, submits and restarts of a real server on this machine.

Figures of others: SkyPilot 0.14.1, dstack 0.22.5 and torchx 0.7.0 measured by the authors on two
shared vCPUs with Python 3.11; the rest as published, with the place beside it.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench.served import (
    Connection,
    Rate,
    Server,
    all_jobs,
    command_cpu_s,
    load,
    submit,
)
from bench.table import Row
from tercio.runtime.recovery import recover
from tercio.store.journal import Journal

Table = tuple[str, list[Row], str]
CLIENTS = 8
BATCH = 100
BATCHES = 100
"""In all: 10,000 jobs, which the restart then finds in the journal."""
SINGLE_S = 3.0
STATUS_S = 3.0
STARTS = 50
JOB = {"name": "bench", "run": "python train.py", "per_task": {"devices": "CPU:2"}}
ONE_LINE_RATE = "{:,.0f}/s ({:.2f} ms of server CPU each)"


def local_settings() -> dict[str, str]:
    """A local engine with two declared devices, whatever this machine has."""
    settings = {"TERCIO_LOCAL__CPU_DEVICES": "2"}
    if os.geteuid() == 0:
        settings["TERCIO_LOCAL__RUN_AS"] = "root"
    return settings


def tables() -> list[Table]:
    return [command_line(), *served(), starts()]


def command_line() -> Table:
    """CPU of the commands that people type and completion calls."""
    python = [sys.executable]
    with Server({"TERCIO_SIM__CLUSTER": "8x8", "TERCIO_LOCAL__ENABLED": "false"}) as server:
        bare = command_cpu_s([*python, "-c", "pass"], server.environment)
        shown = command_cpu_s([*python, "-m", "tercio", "--help"], server.environment)
        body = {"job": {**JOB, "per_task": {"devices": "H100:8"}}}
        with Connection(server) as connection:
            submit(connection, "/v1/jobs/batch", {"jobs": [body] * 20})
        listed = command_cpu_s([*python, "-m", "tercio", "ps"], server.environment)
    others = "torchx 0.13, dstack 1.2, SkyPilot 2.1"
    rows = [
        Row("`python -c pass`, CPU", f"{bare:.3f} s"),
        Row("`tercio --help`, CPU", f"{shown:.3f} s", "0.12 s", others),
        Row("`tercio ps` of 20 jobs, CPU", f"{listed:.3f} s", "0.25 s", "SkyPilot `status` 2.4"),
    ]
    return ("Command line", rows, "User and system CPU of the process, median of 7.")


def served() -> list[Table]:
    """Memory, requests, submits, and a restart, all of one server."""
    with Server(local_settings()) as server:
        time.sleep(1.0)
        rows = [memory_row(server, "Server, idle", "100 MiB", "dstack 241, SkyPilot 953")]
        with Connection(server) as connection:
            (running,) = submit(connection, "/v1/jobs", {"job": {**JOB, "run": "sleep 180"}})
        batched, ids = submit_batches(server)
        rows.append(memory_row(server, f"Server with {len(ids):,} waiting jobs", "", ""))
        memory = ("Memory", rows, "The server and its children; PSS counts shared pages by part.")
        statuses = status_rows(server, ids)
        single = submit_single(server, CLIENTS)
        alone = submit_single(server, 1)
        waiting = f"{CLIENTS} clients, one job each"
        requests = (
            "Requests over HTTP",
            [
                *statuses,
                Row(f"durable submits, {CLIENTS} clients, batches of {BATCH}",
                    rate(batched), "1,000/s", "none published"),
                Row(f"durable submits, {waiting}, {len(ids):,} already waiting",
                    rate(single), "300/s", "Armada's default limit 100/s; SkyPilot 10 in 40 s"),
                Row("durable submits, one client, one after the other: a wait for the disk each",
                    rate(alone)),
            ],
            "Clients run on the same machine. Every submit is in the journal, with fsync, before "
            "its answer; the jobs wait, so each is also scheduled.",
        )  # fmt: skip
        expected = 1 + len(ids) + single.count + alone.count
        restarted = restart(server, expected)
        with Connection(server) as connection:
            end(connection, running)
        return [memory, requests, restarted]


def end(connection: Connection, job_id: str) -> None:
    """Stop a job and wait for it, so that nothing outlives the bench."""
    connection.post(f"/v1/jobs/{job_id}/cancel", {})
    while b'"state":"cancelled"' not in connection.get(f"/v1/jobs/{job_id}").body:
        time.sleep(0.005)


def memory_row(server: Server, what: str, bar: str, others: str) -> Row:
    pss, rss = server.memory_mib("Pss"), server.memory_mib("Rss")
    return Row(f"{what}, PSS (RSS)", f"{pss:.0f} MiB ({rss:.0f})", bar, others)


def rate(found: Rate) -> str:
    return ONE_LINE_RATE.format(found.per_s, found.cpu_ms_each)


def submit_batches(server: Server) -> tuple[Rate, list[str]]:
    """Submit 10,000 jobs of ten shapes that all wait."""
    ids: list[list[str]] = [[] for _ in range(CLIENTS)]
    bodies = [{"job": {**JOB, "name": f"bench-{at}", "priority": at % 10}} for at in range(BATCH)]

    def work(connection: Connection, number: int) -> int:
        for _ in range(number, BATCHES, CLIENTS):
            ids[number] += submit(connection, "/v1/jobs/batch", {"jobs": bodies})
        return len(ids[number])

    return load(server, CLIENTS, work), [job_id for part in ids for job_id in part]


def submit_single(server: Server, clients: int) -> Rate:
    until_s = time.perf_counter() + SINGLE_S

    def work(connection: Connection, number: int) -> int:
        done = 0
        while time.perf_counter() < until_s:
            submit(connection, "/v1/jobs", {"job": {**JOB, "name": f"single-{number}"}})
            done += 1
        return done

    return load(server, clients, work)


def status_rows(server: Server, ids: list[str]) -> list[Row]:
    rows = []
    for what, path in (
        ("GET one job", f"/v1/jobs/{ids[0]}"),
        ("GET a list of 20", "/v1/jobs?limit=20"),
    ):
        until_s = time.perf_counter() + STATUS_S

        def work(connection: Connection, _: int, path: str = path, end: float = until_s) -> int:
            done = 0
            while time.perf_counter() < end:
                if connection.get(path).status != 200:
                    raise RuntimeError(path)
                done += 1
            return done

        others = "SkyPilot 2" if not rows else ""
        rows.append(Row(f"{what}, 4 clients", rate(load(server, 4, work)), "1,000/s", others))
    return rows


def restart(server: Server, expected: int) -> Table:
    """Kill the server, look at its journal from outside, start it again and compare."""
    before = {job["id"]: job for job in all_jobs(server)}
    server.end(signal.SIGKILL)
    matches = "equal" if replayed_hashes_match(server.state) else "DIFFERENT"
    ready_s = server.start()
    after = {job["id"]: job for job in all_jobs(server)}
    is_same = len(before) == expected and _facts(before) == _facts(after)
    rows = [
        Row(f"restart after kill -9, {expected:,} jobs in the journal, to the first answer",
            f"{ready_s:.2f} s", "5 s", "Armada: up to 15 min before an index (PR 4321)"),
        Row("jobs, states and attempts before and after", "equal" if is_same else "DIFFERENT",
            "equal", ""),
        Row("state hash from the checkpoint and from the first entry", matches, "equal", ""),
    ]  # fmt: skip
    return ("Restart", rows, "One job runs through it and is adopted; the others wait.")


def _facts(jobs: dict[str, dict[str, object]]) -> list[tuple[object, ...]]:
    return sorted((k, j["state"], j["attempt"], j["submitted_s"]) for k, j in jobs.items())


def replayed_hashes_match(state: Path) -> bool:
    """Whether the journal's newest checkpoint, and none, lead to the same state."""
    with tempfile.TemporaryDirectory() as directory:
        hashes = []
        for name in ("with", "without"):
            copy = Path(directory) / name
            copy.mkdir()
            for part in state.glob("journal.db*"):
                shutil.copy(part, copy / part.name)
            journal = Journal.open(copy / "journal.db")
            if name == "without":
                journal._writer.execute("DELETE FROM checkpoints")
            hashes.append(recover(journal).cluster.state_hash())
            journal.close()
    return hashes[0] == hashes[1]


def starts() -> Table:
    """From the request to the first instruction of the job's command, one job at a time."""
    spent = []
    with Server(local_settings()) as server, Connection(server) as connection:
        out = server.state / "starts"
        out.mkdir(mode=0o777)
        for number in range(STARTS + 3):
            file = out / str(number)
            job = {"name": "start", "per_task": {"devices": "CPU:1"},
                   "run": f"date +%s.%N > {file}.new; mv {file}.new {file}"}  # fmt: skip
            begun_s = time.time()
            (job_id,) = submit(connection, "/v1/jobs", {"job": job})
            while not file.exists():
                time.sleep(0.001)
            spent.append(float(file.read_text()) - begun_s)
            while b'"state":"succeeded"' not in connection.get(f"/v1/jobs/{job_id}").body:
                time.sleep(0.005)
    spent = sorted(spent[3:])
    p95 = spent[math.ceil(0.95 * len(spent)) - 1]
    rows = [
        Row("submit to process start, one task, local engine, median (p95)",
            f"{1000 * statistics.median(spent):.0f} ms ({1000 * p95:.0f})", "50 ms",
            "SkyPilot `exec` on Kubernetes 5.7 s (PR 3157)"),
    ]  # fmt: skip
    return ("Starting a job", rows, f"{STARTS} jobs, from the request to the time `date` prints.")
