"""`tercio top`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Final

import click

from tercio.cli import dashboard
from tercio.cli.dashboard import Frame
from tercio.cli.human import STATE_STYLE
from tercio.cli.output import write
from tercio.cli.session import Session
from tercio.cli.verbs import Verb, pass_session

if TYPE_CHECKING:
    from rich.console import RenderableType

_LINES_BESIDE_JOBS: Final = 12


@click.command(
    cls=Verb,
    examples="""
    tercio top
    tercio top --interval 5
    tercio top --count 1          # one picture, also for scripts
    """,
)
@click.option(
    "-i",
    "--interval",
    "interval_s",
    type=click.FloatRange(0.2, 3600),
    default=2.0,
    metavar="SECONDS",
    help="Between two pictures; default 2.",
)
@click.option("--count", "limit", type=click.IntRange(1), metavar="N", help="End after N.")
@pass_session
def command(session: Session, *, interval_s: float, limit: int | None) -> None:
    """Watch devices, queues and jobs. Ctrl-C ends it."""
    frames = _frames(session, interval_s=interval_s, limit=limit)
    if session.width() is None or limit is not None:
        for position, frame in enumerate(frames):
            if position:
                write("")
            write(plain(session, frame))
            sys.stdout.flush()
        return
    _live(session, frames)


def plain(session: Session, frame: Frame) -> str:
    """Return a picture as text, aligned, without colour."""
    now_s = session.now_s()
    jobs = [dashboard.job_cells(job, now_s) for job in (*frame.running, *frame.waiting)]
    lines = [
        dashboard.title(frame, now_s),
        "",
        *(dashboard.pool_text(pool) for pool in frame.pools),
        "",
        *_aligned([dashboard.QUEUE_HEADERS, *map(dashboard.queue_cells, frame.queues)]),
        "",
        *_aligned([dashboard.JOB_HEADERS, *jobs]),
    ]
    return "\n".join(lines)


def _frames(session: Session, *, interval_s: float, limit: int | None) -> Iterator[Frame]:
    for position in count(1):
        yield dashboard.fetch_frame(session.client)
        if position == limit:
            return
        time.sleep(interval_s)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _live(session: Session, frames: Iterator[Frame]) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(no_color=not session.has_color(sys.stdout), highlight=False)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for frame in frames:
            live.update(_picture(session, frame, rows=console.size.height), refresh=True)


def _picture(session: Session, frame: Frame, *, rows: int) -> RenderableType:
    """Return a picture in colour that fits the terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    now_s = session.now_s()
    queues = Table(*dashboard.QUEUE_HEADERS, box=None, pad_edge=False, header_style="bold")
    for queue in frame.queues:
        queues.add_row(*map(Text, dashboard.queue_cells(queue)))
    jobs = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    room = max(5, rows - _LINES_BESIDE_JOBS - len(frame.queues) - len(frame.pools))
    shown = (*frame.running, *frame.waiting)
    lines = [dashboard.job_cells(job, now_s) for job in shown[:room]]
    for position, header in enumerate(dashboard.JOB_HEADERS):
        # Only the last column, the prose, gives way to a narrow terminal.
        is_last = position == len(dashboard.JOB_HEADERS) - 1
        widest = max((len(line[position]) for line in lines), default=0)
        least = None if is_last else max(widest, len(header)) + (2 if header == "STATE" else 0)
        jobs.add_column(header, no_wrap=True, overflow="ellipsis", min_width=least)
    for job, line in zip(shown, lines, strict=False):
        cells = [Text(cell) for cell in line]
        symbol, style = STATE_STYLE.get(job.state, ("", ""))
        cells[4] = Text(f"{symbol} {job.state}", style=style)
        jobs.add_row(*cells)
    more = len(shown) - room
    bars = [Text(dashboard.pool_text(pool), style=_heat(pool)) for pool in frame.pools]
    return Group(
        Text(dashboard.title(frame, now_s), style="bold"),
        Text(),
        *bars,
        Text(),
        queues,
        Text(),
        jobs,
        Text(f"and {more} more: tercio ps" if more > 0 else "Ctrl-C ends", style="dim"),
    )


def _heat(pool: dashboard.PoolLine) -> str:
    if pool.nodes_out:
        return "yellow"
    return "green" if pool.used else "dim"
