"""Options that several `tercio size` commands share, and what they stand for."""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypedDict, TypeVar

import click

from tercio.errors import UserError

if TYPE_CHECKING:
    from tercio.sizing.lengths import Lengths

Function = TypeVar("Function", bound=Callable[..., object])

PRICES: Final = ("on-demand", "spot", "committed")
TRACE_BYTES_MAX: Final = 512 * 1024**2


def cost_options(function: Function) -> Function:
    """Add the terms of the price, and the grid that the power comes from."""
    for option in (
        click.option(
            "--grid",
            metavar="REGION",
            default="",
            help="Carbon of this country (USA, France, ...) or g/kWh; default: the site file's.",
        ),
        click.option(
            "--price",
            type=click.Choice(PRICES),
            default="on-demand",
            show_default=True,
            help="Terms; what is not published costs '-'.",
        ),
    ):
        function = option(function)
    return function


def layout_options(function: Function) -> Function:
    """Add options that fix sizes of the layout."""
    for name, words in (
        ("ep", "expert"), ("cp", "context"), ("pp", "pipeline"), ("tp", "tensor"),
    ):  # fmt: skip
        function = click.option(
            f"--{name}", type=click.IntRange(1), metavar="N", help=f"Fix the {words} parallelism."
        )(function)
    return function


def load_options(function: Function) -> Function:
    """Add the options that describe a serving load."""
    for option in (
        click.option(
            "--moe-imbalance",
            type=float,
            default=1.0,
            show_default=True,
            help="Tokens of the busiest expert-parallel device over their mean.",
        ),
        click.option(
            "--disaggregated", is_flag=True, help="Pools of their own for prompts and answers."
        ),
        click.option(
            "--spec-cost",
            type=float,
            default=0.05,
            show_default=True,
            help="Time of one draft over that of a step.",
        ),
        click.option("--spec-accept", type=float, help="Share of the drafts that are accepted."),
        click.option(
            "--spec-length", type=int, metavar="N", help="Drafts per step of speculative decoding."
        ),
        click.option(
            "--prefix-hit", type=float, help="Share of prompt tokens that are cached; 0 to 1."
        ),
        click.option("--in-cv", type=float, help="Spread of prompt lengths: deviation over mean."),
        click.option(
            "--trace",
            metavar="FILE",
            help="Lengths, rate and prefix hits of recorded requests (CSV or JSON lines, .gz).",
        ),
    ):
        function = option(function)
    return function


def read_trace(path: str | None) -> Lengths | None:
    """What a trace says, None without one."""
    from tercio.cli.sizing_input import read_file
    from tercio.sizing.lengths import read_lengths

    if path is None:
        return None
    raw = read_file(path, "trace")
    try:
        body = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        text = body.decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: {error}", field="trace") from None
    return read_lengths(text, name=path)


class Load(TypedDict):
    """The fields of a serving goal that describe its requests."""

    isl: float
    osl: float
    rps: float
    prompt_cv: float
    prefix_hit_ratio: float
    drafts: int
    accept_ratio: float
    draft_cost_ratio: float
    expert_imbalance: float
    is_disaggregated: bool


def load_of(
    *,
    isl: str | None,
    osl: str | None,
    rps: float | None,
    in_cv: float | None,
    prefix_hit: float | None,
    trace: str | None,
    spec_length: int | None,
    spec_accept: float | None,
    spec_cost: float,
    disaggregated: bool,
    moe_imbalance: float,
) -> tuple[Lengths | None, Load]:
    """The trace, and the requests as the options say, else as the trace, else the defaults.

    Raises:
        UserError: there is no rate, or a number is out of bounds.
    """
    from tercio.sizing.quantities import parse_count

    recorded = read_trace(trace)
    drafts, accept = speculation(spec_length, spec_accept)
    if rps is None:
        rps = recorded.peak_rps if recorded else None
    if rps is None or not 0 < rps < math.inf:
        raise UserError(
            "no rate of requests" if rps is None else f"rps is {rps:g}",
            field="rps",
            hint="write --rps 20, or give a --trace",
        )
    hit, cv = prefix_hit, in_cv
    if hit is None:
        hit = (recorded.prefix_hit_ratio or 0.0) if recorded else 0.0
    if cv is None:
        cv = recorded.prompt_cv if recorded else 1.0
    for name, value, high in (("prefix-hit", hit, 1.0), ("in-cv", cv, 100.0)):
        if not 0 <= value <= high:
            raise UserError(
                f"{name} is {value:g}",
                field=name,
                hint=f"write a number from 0 to {high:g}",
            )
    known = (recorded.isl, recorded.osl) if recorded else (2000.0, 500.0)
    load = Load(
        isl=parse_count(isl, field="in") if isl else known[0],
        osl=parse_count(osl, field="out") if osl else known[1],
        rps=rps,
        prompt_cv=cv,
        prefix_hit_ratio=hit,
        drafts=drafts,
        accept_ratio=accept,
        draft_cost_ratio=spec_cost,
        expert_imbalance=moe_imbalance,
        is_disaggregated=disaggregated,
    )
    return recorded, load


def speculation(length: int | None, accept: float | None) -> tuple[int, float]:
    """Drafts per step and their acceptance; both or none."""
    if (length is None) != (accept is None):
        given, absent = ("--spec-length", "--spec-accept")
        if length is None:
            given, absent = absent, given
        raise UserError(
            f"{given} needs {absent}",
            field=absent.removeprefix("--"),
            hint="write --spec-length 4 --spec-accept 0.7",
        )
    return length or 0, accept or 0.0
