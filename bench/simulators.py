"""Tercio's twin beside another simulator on the same log in the same run, where one is installed.

`pip install accasim==1.1.3` brings the one that PyPI has. It plays FIFO over one pool of cores,
without gangs that keep to nodes; the twin plays the live driver, core and scheduler.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from bench.log_forms import as_swf, sums_of
from bench.table import Row
from tercio.cli.twin_files import open_trace

PINNED = "accasim==1.1.3"


class Case(NamedTuple):
    """One virtual cluster of Philly, and what was measured on it elsewhere.

    Attributes:
        queue: its name in the trace.
        nodes: how many it had, of eight devices each.
        others: jobs per CPU second of simulators that PyPI does not have.
    """

    queue: str
    nodes: int
    others: str


CASES = (
    Case("103959", 8, "HeliosArtifact 150, Tiresias 1,074, PAI 49 jobs/s"),
    Case("11cb48", 16, "HeliosArtifact 1,135, Tiresias 108, PAI 391 jobs/s"),
)
NOTES = (
    "Two virtual clusters of Philly as SWF, FIFO; reading the log is counted. AccaSim 1.1.3 fills"
    " one pool of cores first fit, its schedule is written by a second process that is not counted,"
    " and it runs on Python 3.11 with two names that Python took away put back. Others: measured on"
    " two shared vCPUs, FIFO, in one core each."
)


def accasim(log: Path, nodes: int, folder: Path) -> str:
    """Run AccaSim on a log in a process of its own, and say what it came to."""
    system = {
        "system_name": "philly", "start_time": 0, "equivalence": {"processor": {"core": 1}},
        "groups": {"g0": {"core": 8}}, "resources": {"g0": nodes},
    }  # fmt: skip
    config = folder / "system.json"
    config.write_text(json.dumps(system), encoding="utf-8")
    command = [sys.executable, "-m", "bench.accasim_run", str(log), str(config), str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return (
        f"AccaSim {found['cpu_s']:.2f} s of CPU, {found['jobs'] / found['cpu_s']:,.0f} jobs/s;"
        f" wait {found['wait_s']:,.1f} s"
    )


def measure(case: Case, philly: Path, folder: Path, *, is_installed: bool) -> Row:
    """Play one virtual cluster in the twin, and in AccaSim where it is installed."""
    trace = open_trace([philly], filters=(
        "timestamp>=2017-10-01", "timestamp<2017-12-01", f"cluster={case.queue}",
    ))  # fmt: skip
    log = folder / f"{case.queue}.swf"
    log.write_text(as_swf(trace.jobs), encoding="utf-8")
    sums, read_s, replayed_s = sums_of(log, f"{case.nodes}x8")
    cpu_s = read_s + replayed_s
    ours = f"{cpu_s:.2f} s of CPU, {sums.jobs / cpu_s:,.0f} jobs/s; wait {sums.mean_wait_s:,.1f} s"
    beside = f"AccaSim: not installed (pip install {PINNED})"
    if is_installed:
        beside = accasim(log, case.nodes, folder)
    what = f"{case.queue} on {case.nodes}x8, {sums.jobs:,} jobs"
    return Row(what, ours, others=f"{beside}; {case.others}")


def tables() -> list[tuple[str, list[Row], str]]:
    philly = Path(os.environ.get("TERCIO_SHARED", "../shared"))
    philly = philly / "traces/philly-2017/philly_jobs.csv.gz"
    if not philly.is_file():
        return []
    found = importlib.util.find_spec("accasim") is not None
    with tempfile.TemporaryDirectory() as place:
        rows = [measure(case, philly, Path(place), is_installed=found) for case in CASES]
    return [("The twin beside other simulators", rows, NOTES)]
