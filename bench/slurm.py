"""The Slurm engine on a real cluster of emulated nodes, beside plain `sbatch` in the same run."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.table import Row
from tercio.engines.registry import SiteRoom
from tercio.engines.slurm.accounts import Account
from tercio.engines.slurm.commands import Commands, Done, LocalCommands
from tercio.engines.slurm.connect import make_engine
from tercio.engines.slurm.engine import SlurmEngine
from tercio.engines.slurm.options import SlurmOptions
from tercio.engines.slurm.spool import LocalSpool
from tercio.model.effects import DeviceOrder, LaunchTask
from tercio.model.events import NodeReported
from tercio.model.ids import EffectId, JobId, NodeName, SiteName
from tercio.model.resources import DeviceShare

_LAUNCHES = 24
_GANG = 32
_JOBS = 5000
_SUBMITTERS = 4
_POLLS = 7
_TESTS = Path(__file__).parents[1] / "tests" / "slurm"


class TimedCommands(LocalCommands):
    """Notes when each `sbatch` was answered, and counts the commands."""

    def __init__(self, *, conf: str) -> None:
        super().__init__(conf=conf)
        self.accepted_s: list[float] = []
        self.count = 0

    async def run(
        self, argv: Sequence[str], *, stdin: bytes = b"", account: Account | None = None
    ) -> Done:
        self.count += 1
        done = await super().run(argv, stdin=stdin, account=account)
        if argv[0] == "sbatch":
            self.accepted_s.append(time.perf_counter())
        return done


def tables() -> list[tuple[str, list[Row], str]]:
    sys.path.insert(0, str(_TESTS))
    from slurmd_cluster import SlurmCluster, missing

    reason = missing()
    if reason:
        return [("Slurm", [Row("not measured", reason)], "")]
    cluster = SlurmCluster()
    try:
        cluster.start()
        rows = asyncio.run(_launches(cluster))
        rows += asyncio.run(_observing(cluster))
    finally:
        cluster.stop()
    notes = (
        "Slurm 22.05 with four emulated nodes of eight GPUs on this machine; daemons, tasks and "
        "Tercio share its cores. Launches one after the other; the gang's tasks together. The "
        f"{_JOBS:,} waiting jobs are separate submissions, not an array."
    )
    return [("Slurm", rows, notes)]


def _engine(cluster: object, commands: Commands) -> SlurmEngine:
    conf = str(cluster.conf)  # type: ignore[attr-defined]
    root: Path = cluster.root  # type: ignore[attr-defined]
    room = SiteRoom(clock=time.time, state_dir=root / "tercio", workdir_of=Path)
    options = SlurmOptions(conf=conf, run_as="root", poll_s=1.0, python=sys.executable)
    return make_engine(SiteName("hpc"), options, room, commands, LocalSpool(str(root / "spool-b")))


async def _launches(cluster: object) -> list[Row]:
    commands = TimedCommands(conf=str(cluster.conf))  # type: ignore[attr-defined]
    engine = _engine(cluster, commands)
    nodes: list[NodeName] = []
    await engine.open(
        lambda seen: nodes.append(seen.spec.name) if isinstance(seen, NodeReported) else None
    )
    plain, ours = [], []
    for number in range(_LAUNCHES):
        begun_s = time.perf_counter()
        cluster.sbatch("--mem=256M", "--gres=gpu:1", script="exit 0")  # type: ignore[attr-defined]
        plain.append(time.perf_counter() - begun_s)
        begun_s = time.perf_counter()
        await engine.launch(_order(number, nodes[0], "exit 0"), {})
        ours.append(commands.accepted_s[-1] - begun_s)
    commands.accepted_s.clear()
    begun_s = time.perf_counter()
    cpu_s = time.process_time()
    orders = [_order(1000 + n, nodes[n % len(nodes)], "sleep 60", n // 4) for n in range(_GANG)]
    await asyncio.gather(*(engine.launch(order, {}) for order in orders))
    gang_s = time.perf_counter() - begun_s
    gang_cpu_s = time.process_time() - cpu_s
    accepted_s = max(commands.accepted_s) - begun_s
    await engine.close()
    middle, bare = statistics.median(ours) * 1000, statistics.median(plain) * 1000
    return [
        Row("placement to accepted by Slurm, median", f"{middle:.0f} ms", "150 ms",
            f"plain sbatch in the same run {bare:.0f} ms"),
        Row(f"a gang of {_GANG} tasks, all accepted", f"{accepted_s:.2f} s"),
        Row(f"the same, all running (CPU of ours {gang_cpu_s:.2f} s)", f"{gang_s:.2f} s", "",
            "dstack 4 m 30 s and SkyPilot 56 s for 100 pods"),
    ]  # fmt: skip


async def _observing(cluster: object) -> list[Row]:
    for job in cluster.out("squeue", "-h", "-o", "%A").split():  # type: ignore[attr-defined]
        cluster.run("scancel", job, check=False)  # type: ignore[attr-defined]
    _submit_many(cluster)
    commands = TimedCommands(conf=str(cluster.conf))  # type: ignore[attr-defined]
    engine = _engine(cluster, commands)
    await engine.open(_ignore)
    await engine.close()
    walls, cpus, before = [], [], commands.count
    for _ in range(_POLLS):
        begun_s, cpu_s = time.perf_counter(), time.process_time()
        await engine.poll()
        walls.append(time.perf_counter() - begun_s)
        cpus.append(time.process_time() - cpu_s)
    requests = (commands.count - before) / _POLLS
    wall, cpu = statistics.median(walls) * 1000, statistics.median(cpus) * 1000
    return [
        Row(f"one look at {_JOBS:,} jobs (CPU of ours {cpu:.0f} ms)", f"{wall:.0f} ms", "200 ms",
            "squeue --json alone 3.9 s"),
        Row("requests to Slurm in one look", f"{requests:.1f}", "1"),
    ]  # fmt: skip


def _submit_many(cluster: object) -> None:
    loop = (
        f"for i in $(seq {_JOBS // _SUBMITTERS}); do sbatch -Q --hold --mem=1M -o /dev/null "
        '--wrap "exit 0" || exit 1; done'
    )
    env = cluster.env  # type: ignore[attr-defined]
    submitters = [subprocess.Popen(["sh", "-c", loop], env=env) for _ in range(_SUBMITTERS)]
    for each in submitters:
        each.wait()


def _ignore(_: object) -> None:
    """Take an observation and do nothing."""


def _order(number: int, node: NodeName, command: str, device: int = 0) -> LaunchTask:
    job = JobId(f"bench-{number:05d}")
    share = DeviceOrder(share=DeviceShare(index=device), type="H100", vendor="nvidia")
    return LaunchTask(
        effect_id=EffectId(f"launch:{job}/1/0"), epoch=1, deadline_s=time.time() + 60,
        site=SiteName("hpc"), node=node, job_id=job, attempt=1, task=0, user="root",
        command=command, devices=(share,), memory_bytes=256 * 1024**2, cpus_milli=1000,
    )  # fmt: skip
