"""`python -m bench.papers`: published evaluations beside ours, written to docs/bench-papers.md.

`--lists N` takes at most so many job lists of each set. Names of tables make those alone and leave
the others on the page as they are. About half an hour of CPU in full.
"""

from __future__ import annotations

import datetime
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench.__main__ import machine
from bench.published import elastic, faults, gavel, orders, queues
from bench.published.places import traces
from bench.sched import openb
from bench.table import Row, markdown, plain

PAGE = Path(__file__).parents[1] / "docs" / "bench-papers.md"
HEAD = """# Published results

Made by `make bench-papers`, last on {date}: {machine}. Our figure stands beside the published
one of the same workload; a bar is what we want to reach or to beat. Everything runs through the
live scheduler in virtual time.
"""
Table = tuple[str, list[Row], str]


def packing(seeds: range) -> Table:
    """The FGD experiment, with packing by fragmentation."""
    pods = openb.read_pods("default")
    found = [openb.run(pods, seed)[0] for seed in seeds]
    spread = f" ± {statistics.stdev(found):.2f}" if len(found) > 1 else ""
    row = Row(
        "devices allocated when 100 % have been asked for, Alibaba openb, default list",
        f"{statistics.mean(found):.2f}{spread} % ({len(found)} seeds)",
        "95.5 %",
        "FGD 95.23 %",
    )
    return "Packing (FGD, ATC 2023)", [row], "More in [bench](bench.md): `python -m bench packing`."


def tables(lists: int | None) -> dict[str, Callable[[], Table]]:
    """What to make by name, in order of the page."""
    return {
        "elastic": lambda: elastic.table(lists),
        "queues": queues.table,
        "faults": faults.table,
        "packing": lambda: packing(range(42, 42 + min(lists or 10, 10))),
        "gavel": gavel.table,
        "orders": orders.table,
    }


def placed(page: str, head: str, section: str) -> str:
    """The page with one table made anew, in its place or at the end, under another head.

    >>> placed("# old\\n\\n## A\\n\\n1\\n\\n## B\\n\\n2\\n", "# new", "## A\\n\\n3\\n")
    '# new\\n\\n## A\\n\\n3\\n\\n## B\\n\\n2\\n'
    """
    sections = {each.partition("\n")[0]: each for each in page.split("\n## ")[1:]}
    made = section.removeprefix("## ")
    sections[made.partition("\n")[0]] = made
    body = "\n\n".join(f"## {each.strip()}" for each in sections.values())
    return f"{head.strip()}\n\n{body}\n"


def main(arguments: list[str]) -> int:
    if not traces().is_dir():
        print("the public traces are not at hand: set TERCIO_SHARED", file=sys.stderr)
        return 2
    today = datetime.datetime.now(datetime.UTC).date()
    head = HEAD.format(date=today, machine=machine())
    begun_s = time.monotonic()
    lists = None
    if arguments[:1] == ["--lists"]:
        lists, arguments = int(arguments[1]), arguments[2:]
    known = tables(lists)
    unknown = [name for name in arguments if name not in known]
    if unknown:
        print(f"no table {unknown[0]}; tables: {', '.join(known)}", file=sys.stderr)
        return 2
    for name in arguments or known:
        title, rows, notes = known[name]()
        print(plain(title, rows), end="\n\n", flush=True)
        page = placed(PAGE.read_text(encoding="utf-8"), head, markdown(title, rows, notes))
        PAGE.write_text(page, encoding="utf-8")
    print(f"{time.monotonic() - begun_s:.0f} s in all")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
