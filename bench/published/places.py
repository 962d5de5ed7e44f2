"""Where the public traces lie, and the clusters of the papers."""

from __future__ import annotations

import csv
import os
from functools import cache
from pathlib import Path

import msgspec

from tercio.cli.twin_files import load_profiles, open_trace
from tercio.formats.cluster import read_cluster
from tercio.model.node import NodeSpec
from tercio.twin.progress.book import ProfileBook
from tercio.twin.trace import Trace

HETEROGENEOUS = """
nodes:
  - {name: "t[1-6]", devices: "T4:4", cpus: 64, memory: 256GiB}
  - {name: "r[1-3]", devices: "RTX2080Ti:8", cpus: 64, memory: 256GiB}
  - {name: "a[1-2]", devices: "A100:8", cpus: 128, memory: 1024GiB}
"""
"""The 64 devices of Sia's simulations."""

HOMOGENEOUS = """
nodes:
  - {name: "t[1-16]", devices: "T4:4", cpus: 64, memory: 256GiB}
"""
"""The 64 T4 of Pollux."""


def traces() -> Path:
    """Folder of the public traces."""
    return Path(os.environ.get("TERCIO_SHARED", "../shared")) / "traces"


@cache
def profiles() -> ProfileBook:
    """Measured profiles of Pollux and Sia."""
    return load_profiles(traces() / "sia-workloads" / "profiles")


def sized_for(text: str) -> tuple[NodeSpec, ...]:
    """Read one of the clusters above."""
    return read_cluster(text)


def job_list(folder: str, number: int, *, most: int | None = None) -> Trace:
    """One job list of Sia or Pollux; a task takes one core and 1 GiB, of which there is plenty."""
    (path,) = (traces() / folder).glob(f"workload-{number}.csv*")
    trace = open_trace([path], ignores_types=True, devices_per_node=4)
    jobs = tuple(
        msgspec.structs.replace(job, cpus_per_task=1.0, memory_bytes_per_task=1 << 30)
        for job in trace.jobs[:most]
    )
    return msgspec.structs.replace(trace, jobs=jobs)


def published(file: str) -> list[dict[str, str]]:
    """Rows of a table of published figures."""
    text = (traces() / "published-results" / file).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
