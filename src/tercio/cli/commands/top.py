"""`tercio top`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from itertools import count

import click

from tercio.cli import dashboard, health, tables
from tercio.cli.dashboard import Frame
from tercio.cli.output import table_lines, write
from tercio.cli.session import Session
from tercio.cli.verbs import Verb, pass_session


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
            write("\n".join(picture(session, frame, width=session.width(), rows=None)))
            sys.stdout.flush()
        return
    _live(session, frames)


def picture(session: Session, frame: Frame, *, width: int | None, rows: int | None) -> list[str]:
    """Return the lines of a picture, no wider and no longer than the terminal."""
    now_s = session.now_s()
    queues = [column for column in tables.queues().columns if not column.is_wide]
    jobs = [column for column in tables.jobs(session).columns if not column.is_wide]
    lines = [
        session.paint(dashboard.title(frame, now_s), "bold"),
        "",
        *(session.paint(dashboard.pool_text(pool), _heat(pool)) for pool in frame.pools),
        "",
        *_live_lines(session, frame, rows=rows),
        *table_lines(session, queues, frame.queues, width=width),
        "",
    ]
    shown = (*frame.running, *frame.waiting)
    room = len(shown) if rows is None else max(3, rows - len(lines) - 3)
    listed = table_lines(session, jobs, shown[:room], width=width)
    lines += listed if rows is None else listed[: room + 1]
    more = len(shown) - room
    if more > 0:
        lines.append(session.paint(f"and {more} more: tercio ps", "dim"))
    return lines


def _live_lines(session: Session, frame: Frame, *, rows: int | None) -> list[str]:
    """Return a line for every device that readings know, the busiest nodes first in a terminal.

    Of a fleet that does not fit, the rest is counted.
    """
    lines: list[str] = []
    known = [node for node in frame.live if node.devices or node.health != "ok" or node.notes]
    known.sort(key=lambda node: node.health == "ok")
    for node in known:
        mark = "" if node.health == "ok" else f"  {node.health}"
        notes = "".join(f"  {what}: {why}" for what, why in sorted(node.notes.items()))
        lines.append(session.paint(f"{node.node}{mark}{notes}", health.style_of(node.health)))
        for index, device in sorted(node.devices.items()):
            text = health.device_line(index, device, node.jobs.get(index, ()))
            lines.append(session.paint(text, health.heat(device)))
    room = None if rows is None else max(4, rows // 2)
    if room is not None and len(lines) > room:
        hidden = len(lines) - room
        lines = [*lines[:room], session.paint(f"and {hidden} more lines of devices", "dim")]
    return [*lines, ""] if lines else []


def _frames(session: Session, *, interval_s: float, limit: int | None) -> Iterator[Frame]:
    for position in count(1):
        yield dashboard.fetch_frame(session.client)
        if position == limit:
            return
        time.sleep(interval_s)


def _live(session: Session, frames: Iterator[Frame]) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(no_color=not session.has_color(sys.stdout), highlight=False)
    with Live(
        console=console,
        screen=True,
        auto_refresh=False,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as live:
        for frame in frames:
            size = console.size
            lines = picture(session, frame, width=size.width, rows=size.height)
            text = Text("\n", no_wrap=True).join(Text.from_ansi(line) for line in lines)
            live.update(text, refresh=True)


def _heat(pool: dashboard.PoolLine) -> str:
    if pool.nodes_out:
        return "yellow"
    return "green" if pool.used else "dim"
