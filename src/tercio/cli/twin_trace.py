"""Options of every twin command that takes a trace, and what is read with them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from tercio.errors import UserError

if TYPE_CHECKING:
    from tercio.model.node import NodeSpec
    from tercio.twin.trace import Trace

Function = TypeVar("Function", bound=Callable[..., Any])


class TraceOptions(NamedTuple):
    """How a trace is read."""

    format_name: str | None = None
    filters: tuple[str, ...] = ()
    profiles: str | None = None
    reference: str | None = None
    is_lenient: bool = False
    ignores_types: bool = False


def check_profiles(profiles: str | None) -> None:
    """Refuse profiles that are not there, whether or not the trace would use them.

    Raises:
        UserError: `not_found`.
    """
    if profiles is not None and not Path(profiles).exists():
        raise UserError(
            f"--profiles {profiles}: there is no such file or folder",
            code="not_found",
            field="profiles",
            hint="name a folder of profiles or a *throughputs.json, or leave --profiles out",
        )


def trace_options(function: Function) -> Function:
    """Add the options to a command, which receives them as `reading`."""

    @functools.wraps(function)
    def with_reading(
        *args: Any,
        format_name: str | None,
        filters: tuple[str, ...],
        profiles: str | None,
        reference: str | None,
        skip_bad_lines: bool,
        ignore_types: bool,
        **kwargs: Any,
    ) -> Any:
        check_profiles(profiles)
        reading = TraceOptions(
            format_name, filters, profiles, reference, skip_bad_lines, ignore_types
        )
        return function(*args, reading=reading, **kwargs)

    for option in (
        click.option("--ignore-types", is_flag=True, help="Let every job run on any device."),
        click.option("--skip-bad-lines", is_flag=True, help="Leave unreadable lines out."),
        click.option("--reference", metavar="TYPE", help="Device type that profiles refer to."),
        click.option(
            "--profiles", metavar="DIR", help="Throughput profiles; else looked for by the trace."
        ),
        click.option(
            "--filter",
            "filters",
            metavar="COLUMN=VALUE",
            multiple=True,
            help="Only such jobs; also != > >= < <=. May be repeated.",
        ),
        click.option(
            "--format",
            "format_name",
            metavar="NAME",
            help="sacct, swf, philly, openb, itp, sia, gavel or journal; else recognised.",
        ),
    ):
        with_reading = option(with_reading)
    return with_reading  # type: ignore[return-value]


def seconds(text: str | None, field: str) -> float | None:
    """Read a duration given as an option, if it was."""
    from tercio.model.units import parse_duration_s

    return None if text is None else parse_duration_s(text, field=field)


class Drawing(NamedTuple):
    """A workload that is drawn from a model instead of read."""

    model: str | None = None
    load: float = 1.0
    duration: str | None = None
    teams: tuple[str, ...] = ()


def drawing_options(function: Function) -> Function:
    """Add the options of `twin fit`'s models to a command, which receives them as `drawing`."""

    @functools.wraps(function)
    def with_drawing(
        *args: Any,
        model: str | None,
        load: float,
        duration: str | None,
        teams: tuple[str, ...],
        **kwargs: Any,
    ) -> Any:
        return function(*args, drawing=Drawing(model, load, duration, teams), **kwargs)

    for option in (
        click.option("--team", "teams", metavar="NAME=QUEUE:TIMES", multiple=True,
                     help="With --model: a new team with jobs like a queue's."),
        click.option("--duration", metavar="TIME", help="With --model: length, such as 30d."),
        click.option("--load", type=float, default=1.0, show_default=True,
                     help="With --model: times as many jobs."),
        click.option("--model", metavar="FILE", help="Draw jobs from a model of 'twin fit'."),
    ):  # fmt: skip
        with_drawing = option(with_drawing)
    return with_drawing  # type: ignore[return-value]


def workload(
    trace: str | None,
    reading: TraceOptions,
    drawing: Drawing,
    nodes: Sequence[NodeSpec],
    seed: int,
) -> Trace:
    """Read the trace, or draw from the model, whichever was given.

    Raises:
        UserError: both or none were given, or what was given cannot be read.
    """
    from tercio.cli.twin_fit import draw_from

    if (trace is None) == (drawing.model is None):
        raise UserError("give a TRACE, or --model FILE", field="trace", hint="and not both of them")
    if drawing.model is not None:
        return draw_from(drawing.model, seed, drawing)
    assert trace is not None
    return read_trace_file(trace, reading, nodes)


def read_trace_file(path: str, reading: TraceOptions, nodes: Sequence[NodeSpec] = ()) -> Trace:
    """Read a trace; gangs of which only the total is known are split for these nodes.

    Raises:
        UserError: naming file, line, field and value.
    """
    from tercio.cli.twin_files import open_trace
    from tercio.cli.twin_input import WHAT_TO_NAME

    if not Path(path).exists():
        raise UserError(
            f"there is no file or folder {path}",
            code="not_found",
            hint=WHAT_TO_NAME["trace"],
            field="trace",
        )
    return open_trace(
        [Path(path)],
        format_name=reading.format_name,
        filters=reading.filters,
        devices_per_node=max((len(node.devices) for node in nodes), default=8) or 8,
        is_lenient=reading.is_lenient,
        profiles=None if reading.profiles is None else Path(reading.profiles),
        reference=reading.reference,
        ignores_types=reading.ignores_types,
    )
