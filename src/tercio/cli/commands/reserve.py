"""`tercio reserve`."""

from __future__ import annotations

import click

from tercio.cli import human, sharing
from tercio.cli.completing import Name
from tercio.cli.names import split_kind
from tercio.cli.output import Output, has_rows, output_options, show_list, write
from tercio.cli.session import Session
from tercio.cli.verbs import Noun, pass_session
from tercio.errors import UserError
from tercio.model.units import parse_duration_s, parse_instant_s


@click.group(cls=Noun)
def command() -> None:
    """Keep capacity for a queue or a user at a time. `tercio reserve` alone lists."""


@command.command("list", examples="tercio reserve list -o wide")
@output_options
@pass_session
def list_reservations(session: Session, output: Output) -> None:
    """List reservations: for whom, how much, and when the window is; then the gaps before them."""
    pages = session.fetch_pages("/v1/reservations")
    show_list(session, output, sharing.reservations(session), pages)
    if output.is_table and not output.fields:
        gaps = session.fetch_pages("/v1/gaps")
        if has_rows(gaps[0]):
            write("")
            write("gaps, in which a job that ends in time is let in before its turn:")
            show_list(session, output, sharing.gaps(session), gaps)


@command.command("gaps", examples="tercio reserve gaps -o csv")
@click.option("--site", metavar="SITE", help="Only devices of this site.")
@output_options
@pass_session
def list_gaps(session: Session, site: str | None, output: Output) -> None:
    """List devices that are free until a promise to a waiting job or a reservation begins.

    A job that ends before then by its time limit is let in (backfill), as far as the limits of its
    queue and user allow. WHAT FITS are options of `tercio submit`. What opens later opens when the
    jobs that hold the devices reach their planned ends, or sooner.
    """
    pages = session.fetch_pages("/v1/gaps", site=site)
    show_list(session, output, sharing.gaps(session), pages)


@command.command(
    "add",
    examples="""
    tercio reserve add demo-day --user ana --gpus H100:16 --start 2030-03-01T09:00:00Z --for 4h
    tercio reserve add nightly --queue production --gpus H100:8 --start +6h --for 2h --every 1d
    tercio reserve add course --queue students --shape node=2 --start +1d --for 3h --every 7d
    """,
)
@click.argument("name", metavar="NAME")
@click.option("--queue", type=Name("queue"), metavar="QUEUE", help="For the jobs of this queue.")
@click.option("--user", metavar="USER", help="For the jobs of this user.")
@click.option("-g", "--gpus", metavar="H100:16", help="So many devices, wherever they are.")
@click.option("--shape", "shapes", multiple=True, metavar="node=2", help="Whole domains.")
@click.option("--type", "kind", metavar="H100", help="Device type of the domains.")
@click.option("--start", metavar="TIME|+2h", help="When the first window opens; default: now.")
@click.option("--for", "duration", required=True, metavar="4h", help="Length of a window.")
@click.option("--every", metavar="1d", help="From one start to the next; default: one window.")
@click.option("--until", metavar="TIME|+30d", help="No window starts after this.")
@pass_session
def add(
    session: Session,
    /,
    *,
    name: str,
    queue: str | None,
    user: str | None,
    gpus: str | None,
    shapes: tuple[str, ...],
    kind: str | None,
    start: str | None,
    duration: str,
    every: str | None,
    until: str | None,
) -> None:
    """Keep capacity at a time, once or again and again.

    A job of anybody else starts on it only when its time limit ends it before the window opens.
    The holder's jobs, and those that say `reservation: NAME`, may use it while it is open.
    """
    parse_duration_s(duration, field="--for")
    target = None
    if queue is not None:
        split, rest = split_kind(queue)
        target = rest if split == "queue" else queue
    view = session.client.add_reservation(
        name,
        queue=target,
        user=user,
        gpus=gpus,
        type=kind,
        shape=_shape(shapes),
        start=instant(session, start, "--start"),
        duration=duration,
        every=every,
        until=instant(session, until, "--until"),
    )
    when = "" if view.window is None else human.until(view.window[0], session.now_s())
    session.note(f"reservation {view.name} is kept; its first window opens {when}")
    for warning in view.warnings:
        session.warn(warning)


@command.command("remove", examples="tercio reserve remove nightly")
@click.argument("name", metavar="NAME")
@pass_session
def remove(session: Session, name: str) -> None:
    """End a reservation. What runs in it goes on."""
    session.client.remove_reservation(name)
    session.note(f"reservation {name} is removed")


def _shape(texts: tuple[str, ...]) -> dict[str, int]:
    found: dict[str, int] = {}
    for text in texts:
        level, equals, count = text.partition("=")
        if not equals or not count.isdigit():
            raise UserError(f"--shape: '{text}' is not LEVEL=COUNT", hint="write node=2 or rack=1")
        found[level] = int(count)
    return found


def instant(session: Session, text: str | None, field: str) -> str | None:
    """Return an instant for the API; `+2h` counts from now."""
    if text is None:
        return None
    if text.startswith("+"):
        return repr(session.now_s() + parse_duration_s(text[1:], field=field))
    try:
        return repr(parse_instant_s(text, field=field))
    except UserError as error:
        raise UserError(error.message, hint=f"{error.hint}, or +2h from now") from None
