"""Packing on Alibaba's openb trace, by the protocol of the FGD paper, through the live scheduler.

Run: `TERCIO_SHARED=... python bench/sched/openb.py [LIST] [SEEDS]`. Pods arrive one by one, are
placed or dropped, and never leave; nodes are the 1,213 with devices; the mix is the list's
typical pods; the load is inflated to 1.3 times the devices. Figures are the part of all devices
that is allocated when the arrived requests reach 100 % and 130 % of them.
"""

from __future__ import annotations

import collections
import csv
import gzip
import math
import os
import random
import statistics
import sys
import time
from pathlib import Path

from tercio.model.ids import JobId, NodeName, QueuePath, SiteName
from tercio.model.job import JobSpec, NodeFilter, TaskGroup
from tercio.model.node import DeviceSpec, Node, NodeSpec, NodeState
from tercio.model.queue import Policy
from tercio.model.resources import NO_DEVICE, DeviceRequest, Request
from tercio.model.snapshot import Changes, MixEntry, RunningJob, Snapshot, WaitingJob
from tercio.sched.cycle import schedule
from tercio.sched.memory import Memory

Pod = tuple[str, int, int, int, int, str]
"""Name, cores (thousandths), memory (MiB), devices, thousandths of each, allowed models."""

MIB = 1024**2


def trace_dir() -> Path:
    shared = Path(os.environ.get("TERCIO_SHARED", "../shared"))
    return shared / "traces" / "alibaba-openb-2023"


def read_pods(name: str) -> list[Pod]:
    with gzip.open(trace_dir() / f"openb_pod_list_{name}.csv.gz", "rt") as file:
        return [
            (
                row["name"], int(row["cpu_milli"]), int(row["memory_mib"]), int(row["num_gpu"]),
                int(row["gpu_milli"] or 0), row.get("gpu_spec") or "",
            )
            for row in csv.DictReader(file)
        ]  # fmt: skip


def resample(pods: list[Pod], seed: int) -> list[Pod]:
    """As many pods drawn from a list whose kinds have other weights: each by a factor whose
    logarithm is normal with deviation 1/2."""
    rng = random.Random(seed)
    kinds = sorted({pod[1:] for pod in pods})
    factor = {kind: math.exp(rng.gauss(0.0, 0.5)) for kind in kinds}
    drawn = rng.choices(pods, [factor[pod[1:]] for pod in pods], k=len(pods))
    return [(f"pod-{at:05}", *pod[1:]) for at, pod in enumerate(drawn)]


def node_rows(rng: random.Random) -> list[tuple[str, str, int, int, int]]:
    """Name, model, devices, cores (thousandths) and MiB, in one random order: ties go to the
    first."""
    with (trace_dir() / "openb_node_list_gpu_node.csv").open() as file:
        rows = [
            (
                row["sn"], row["model"], int(row["gpu"]), int(row["cpu_milli"]),
                int(row["memory_mib"]),
            )
            for row in csv.DictReader(file)
        ]  # fmt: skip
    rng.shuffle(rows)
    return rows


def read_nodes(rng: random.Random) -> dict[NodeName, Node]:
    """The nodes, in one random order."""
    found = {}
    for sn, model, count, cpus_milli, memory_mib in node_rows(rng):
        name = NodeName(sn)
        devices = tuple(
            DeviceSpec(type=model, index=at, memory_bytes=1 << 40) for at in range(count)
        )
        spec = NodeSpec(
            name=name, site=SiteName("openb"), devices=devices,
            cpus_milli=cpus_milli, memory_bytes=memory_mib * MIB,
        )  # fmt: skip
        found[name] = Node(spec=spec, state=NodeState.READY)
    return found


def inflate(pods: list[Pod], capacity: int, rng: random.Random) -> list[Pod]:
    """Shuffle, then draw with replacement up to 1.3 times the devices (or drop down to it)."""
    pods = sorted(pods)
    rng.shuffle(pods)
    total = sum(pod[3] * pod[4] for pod in pods)
    arriving = list(pods)
    while total > 1.3 * capacity:
        pod = arriving.pop(rng.randrange(len(arriving)))
        total -= pod[3] * pod[4]
    while True:
        pod = rng.choice(pods)
        if total + pod[4] > 1.3 * capacity:
            return arriving
        arriving.append(pod)
        total += pod[3] * pod[4]


def request_of(pod: Pod) -> Request:
    _, cpus, memory, count, milli, _ = pod
    device = NO_DEVICE
    if count and milli == 1000:
        device = DeviceRequest(count=count)
    elif count:
        device = DeviceRequest(share_milli=milli)
    return Request(devices=(device,), cpus_milli=cpus, memory_bytes=memory * MIB)


def typical(pods: list[Pod]) -> tuple[MixEntry, ...]:
    """The commonest kinds that make up 95 % of the list, memory left out."""
    counts = collections.Counter((pod[1], pod[4], pod[3], pod[5]) for pod in pods)
    kept: list[MixEntry] = []
    total = 0
    for (cpus, milli, count, models), seen in sorted(
        counts.items(), key=lambda pair: (pair[1], pair[0]), reverse=True
    ):
        request = request_of(("", cpus, 0, count, milli, ""))
        types = tuple(models.split("|")) if models else ()
        kept.append(MixEntry(request=request, weight=float(seen), types=types))
        total += seen
        if total >= 0.95 * len(pods):
            break
    return tuple(kept)


def spec_of(pod: Pod) -> JobSpec:
    request = request_of(pod)
    nodes = None
    if pod[3]:
        # One alternative per allowed model would prefer the first; the filter keeps them equal.
        models = pod[5].split("|") if pod[5] else []
        match = " || ".join(f"device == '{model}'" for model in models)
        nodes = NodeFilter(match=match) if match else None
    return JobSpec(name="pod", groups=(TaskGroup(per_task=request),), nodes=nodes)


def run(pods: list[Pod], seed: int) -> tuple[float, float, float]:
    """Allocated part at 100 % and 130 % arrived, in %, and the CPU seconds, snapshots included."""
    rng = random.Random(seed)
    nodes = read_nodes(random.Random(seed + 1000))
    capacity = sum(len(node.spec.devices) for node in nodes.values()) * 1000
    mix = typical(pods)
    policy = Policy(half_life_s=0.0, reservation_depth=0)
    specs: dict[Pod, JobSpec] = {}
    running: dict[JobId, RunningJob] = {}
    memory = Memory()
    arrived = allocated = 0
    at_100: float | None = None
    arriving = inflate(pods, capacity, rng)
    begin_s = time.process_time()
    since, gone, placed = -1, (), ()
    for number, pod in enumerate(arriving):
        key = ("", *pod[1:])
        spec = specs.setdefault(key, spec_of(pod))  # type: ignore[arg-type]
        job = WaitingJob(
            job_id=JobId(f"p{number}"), spec=spec, queue=QueuePath("default"), user="u",
            tenant="t", priority=0, is_preemptible=True, submitted_s=float(number),
            sequence=number,
        )  # fmt: skip
        changes = None if since < 0 else Changes(
            since=since, waiting=(*gone, job.job_id), running=placed
        )  # fmt: skip
        snapshot = Snapshot(
            revision=number, nodes=nodes, running=running, waiting={job.job_id: job}, mix=mix,
            changes=changes,
        )  # fmt: skip
        plan = schedule(snapshot, policy, float(number), seed, memory)
        since, gone, placed = number, (job.job_id,), ()
        arrived += pod[3] * pod[4]
        for start in plan.starts:
            allocated += sum(s.milli for t in start.tasks for s in t.devices)
            running[start.job_id] = RunningJob(
                job_id=start.job_id, spec=spec, queue=job.queue, user="u", tenant="t",
                priority=0, is_preemptible=True, sequence=number, attempt=1,
                tasks=start.tasks, placed_s=float(number),
            )  # fmt: skip
            placed = (start.job_id,)
        if at_100 is None and arrived >= capacity:
            at_100 = 100 * allocated / capacity
    return at_100 or 0.0, 100 * allocated / capacity, time.process_time() - begin_s


if __name__ == "__main__":
    chosen = sys.argv[1] if len(sys.argv) > 1 else "default"
    seeds = [int(s) for s in sys.argv[2].split(",")] if len(sys.argv) > 2 else range(42, 52)
    results = []
    for seed in seeds:
        results.append(run(read_pods(chosen), seed))
        print(chosen, seed, "{:.2f} {:.2f}  {:.2f} s".format(*results[-1]), flush=True)
    print(
        f"{chosen}: mean {statistics.mean(r[0] for r in results):.3f} at 100 %, "
        f"{statistics.mean(r[1] for r in results):.3f} at 130 %, "
        f"{statistics.mean(r[2] for r in results):.2f} s CPU"
    )
