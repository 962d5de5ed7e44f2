"""`python -m bench.accasim_run LOG SYSTEM FOLDER`: AccaSim's FIFO on a log; sums as JSON."""

from __future__ import annotations

import collections
import collections.abc
import datetime
import importlib
import json
import sys
import time
from pathlib import Path


def mean_wait_s(schedule: Path) -> float:
    """Read the schedule that AccaSim wrote: `id;user;submit__nodes__start;end;...` a line."""
    waits = []
    for line in schedule.read_text(encoding="utf-8").splitlines():
        asked, _, ran = line.split("__")
        submit = datetime.datetime.fromisoformat(asked.split(";")[2])
        start = datetime.datetime.fromisoformat(ran.split(";")[0])
        waits.append((start - submit).total_seconds())
    return sum(waits) / len(waits)


def main(log: str, system: str, folder: str) -> int:
    # AccaSim was written for Python 3.8, which still had these two names.
    collections.Mapping = collections.abc.Mapping  # type: ignore[attr-defined]
    time.clock = time.process_time  # type: ignore[attr-defined]
    base = "accasim.base"
    fifo = importlib.import_module(f"{base}.scheduler_class").FirstInFirstOut
    first_fit = importlib.import_module(f"{base}.allocator_class").FirstFit
    simulator = importlib.import_module(f"{base}.simulator_class").Simulator(
        log, system, fifo(first_fit()), RESULTS_FOLDER_PATH=folder, LOG_LEVEL="WARNING",
        statistics_output=False, show_statistics=False,
    )  # fmt: skip
    begun_s = time.process_time()
    written = simulator.start_simulation()
    cpu_s = time.process_time() - begun_s
    schedule = Path(next(iter(written.values())))
    jobs = len(schedule.read_text(encoding="utf-8").splitlines())
    print(json.dumps({"jobs": jobs, "cpu_s": cpu_s, "wait_s": mean_wait_s(schedule)}))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
