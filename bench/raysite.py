"""Ray: from an order to the accept, beside a plain Ray submission, on a real one-node cluster."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.table import Row
from tercio.engines.bench import Bench, ShellPrograms, require
from tercio.engines.ray.engine import RayEngine
from tercio.engines.ray.settings import RaySettings
from tercio.model.effects import DeviceOrder
from tercio.model.events import TaskStarted
from tercio.model.ids import SiteName
from tercio.model.resources import DeviceShare

_ROUNDS = 30
_GANG = 200
_PORT = 6395
_START_S = 120.0

# One actor with one device, from the submission to its first answer, as a person would.
_PLAIN = """
import ray, sys, time
ray.init(address=sys.argv[1], log_to_driver=False)
@ray.remote(num_gpus=1, num_cpus=0)
class Plain:
    def here(self): return 1
for _ in range(int(sys.argv[2])):
    at = time.perf_counter()
    one = Plain.remote()
    ray.get(one.here.remote())
    print(time.perf_counter() - at, flush=True)
    ray.kill(one)
"""


def tables() -> list[tuple[str, list[Row], str]]:
    """Return the Ray table; nothing where Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        return []
    with _cluster() as address:
        ours, gang_s = asyncio.run(_ours(address))
        plain = _plain(address)
    rows = [
        Row(
            what=f"one task with one device, order to accept, median of {_ROUNDS}",
            ours=_ms(ours),
            bar="150 ms beyond plain Ray",
            others=f"plain Ray actor in the same run {_ms(plain)}",
        ),
        Row(what=f"{_GANG} tasks without devices, orders to all running", ours=f"{gang_s:.1f} s",
            bar="5 s", others="SkyPilot 56 s for 100 pods, dstack 4 m 30 s"),
    ]  # fmt: skip
    notes = (
        "Both hold one device in Ray. A plain actor starts a Python worker of its own each time; "
        "a task of ours is a process that the node's agent, which is there, starts."
    )
    return [("Ray site", rows, notes)]


async def _ours(address: str) -> tuple[list[float], float]:
    settings = RaySettings(address=address, namespace=f"bench-{os.getpid()}")
    bench = Bench(
        lambda: RayEngine(site=SiteName("ray"), settings=settings, clock=time.time),
        ShellPrograms(),
        user="root",
        deadline_s=_START_S,
    )
    await bench.open()
    try:
        device = DeviceOrder(share=DeviceShare(index=0), type="unknown", vendor="nvidia")
        taken = []
        for _ in range(_ROUNDS):
            at = time.perf_counter()
            _, ref = await bench.start({"command": "true", "devices": (device,)})
            taken.append(time.perf_counter() - at)
            await bench.exit_of(ref)
        at = time.perf_counter()
        orders = [bench.order(bench.programs.exits(0)) for _ in range(_GANG)]
        answers = await asyncio.gather(*(bench.engine.launch(order, {}) for order in orders))
        gang_s = time.perf_counter() - at
        require(all(isinstance(answer, TaskStarted) for answer in answers), "a launch failed")
    finally:
        await bench.close()
    return taken, gang_s


def _plain(address: str) -> list[float]:
    done = subprocess.run(
        [sys.executable, "-c", _PLAIN, address, str(_ROUNDS)],
        capture_output=True, text=True, check=True, timeout=_START_S * 2,
    )  # fmt: skip
    return [float(line) for line in done.stdout.split()]


@contextmanager
def _cluster() -> Iterator[str]:
    """A head with eight emulated devices, ended by its process group."""
    home = Path(tempfile.mkdtemp(prefix="rb-", dir="/tmp"))
    log = home / "head.log"
    with log.open("wb") as out:
        head = subprocess.Popen(
            [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block",
             "--node-ip-address=127.0.0.1", f"--port={_PORT}", "--include-dashboard=false",
             "--num-cpus=16", "--num-gpus=8", f"--temp-dir={home}", "--disable-usage-stats",
             f"--object-store-memory={80 * 1024**2}"],
            stdin=subprocess.DEVNULL, stdout=out, stderr=out,
        )  # fmt: skip
    try:
        give_up = time.monotonic() + _START_S
        while "block forever" not in log.read_text(errors="replace"):
            require(head.poll() is None, log.read_text(errors="replace"))
            require(time.monotonic() < give_up, "Ray did not start")
            time.sleep(0.1)
        yield f"127.0.0.1:{_PORT}"
    finally:
        head.terminate()
        try:
            head.wait(60)
        except subprocess.TimeoutExpired:
            head.kill()
            head.wait()
        shutil.rmtree(home, ignore_errors=True)


def _ms(seconds: list[float]) -> str:
    return f"{statistics.median(seconds) * 1000:.0f} ms"
