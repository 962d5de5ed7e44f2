"""`python -m bench [TOPIC ...]`: print the tables, and write all of them to docs/bench.md.

A topic is a module of this package, or a package in it, with a function
`tables() -> list of (title, rows, notes)`; when it is asked for by name, `full_tables()` where
it has that.
"""

from __future__ import annotations

import datetime
import importlib
import os
import pkgutil
import platform
import sys
import time
from pathlib import Path
from types import ModuleType

import bench
from bench.table import Row, markdown, plain

PAGE = Path(__file__).parents[1] / "docs" / "bench.md"
HEAD = """# Bench

Made by `{command}` on {date}: {machine}. Nothing here passes or fails; other work on the machine
makes times longer, so CPU seconds and memory are what to compare. Figures of others are
published by them, or were measured on two shared vCPUs with Python 3.11.
"""


def topics() -> dict[str, ModuleType]:
    """Return the topics by name, in order of name."""
    found = {}
    for module in sorted(pkgutil.iter_modules(bench.__path__), key=lambda m: m.name):
        if module.name != "__main__":
            topic = importlib.import_module(f"bench.{module.name}")
            if hasattr(topic, "tables"):
                found[module.name] = topic
    return found


def machine() -> str:
    """Return what these figures were made on."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    memory_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1024**3
    load = os.getloadavg()[0]
    return (
        f"{len(os.sched_getaffinity(0))} cores of {models[0] if models else platform.machine()}, "
        f"{memory_gib:.0f} GiB, Python {platform.python_version()}, 1-minute load {load:.1f} at "
        "the start"
    )


def main(names: list[str]) -> int:
    known = topics()
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"no topic {unknown[0]}; topics: {', '.join(known)}", file=sys.stderr)
        return 2
    head = HEAD.format(
        command="make bench", date=datetime.datetime.now(datetime.UTC).date(), machine=machine()
    )
    parts = [head]
    begun_s = time.monotonic()
    for name in names or known:
        topic = known[name]
        make = getattr(topic, "full_tables", topic.tables) if names else topic.tables
        made: list[tuple[str, list[Row], str]] = make()
        for title, rows, notes in made:
            print(plain(title, rows), end="\n\n", flush=True)
            parts.append(markdown(title, rows, notes))
    print(f"{time.monotonic() - begun_s:.0f} s in all")
    if not names:
        PAGE.write_text("\n".join(parts).rstrip() + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
