"""`tercio twin compare`: other policies and other clusters, side by side on the same workload."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tercio.cli.processes import processes_option
from tercio.cli.session import Session
from tercio.cli.twin_trace import (
    Drawing,
    TraceOptions,
    drawing_options,
    seconds,
    trace_options,
    workload,
)
from tercio.cli.verbs import Verb, Word, pass_session
from tercio.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tercio.cli.output import Column
    from tercio.model.node import NodeSpec
    from tercio.twin.arms import Plan
    from tercio.twin.compare import Comparison, Row
    from tercio.twin.plots import Arm
    from tercio.twin.progress.book import ProfileBook
    from tercio.twin.stats import Prices, Waits
    from tercio.twin.trace import Trace
    from tercio.twin.world import World

_SEEDS_MAX = 1000


@click.command(
    "compare",
    cls=Verb,
    examples="""
    tercio twin compare march.txt --cluster cluster.yaml --policy now.yaml --policy new.yaml
    tercio twin compare march.txt --cluster cluster.yaml --policy now.yaml --add 64xH100
    tercio twin compare march.txt --cluster cluster.yaml --drain rack3 --seeds 10 --html r.html
    tercio twin compare --model march.json --load 1.5 --cluster cluster.yaml --add 64xH100
    """,
)
@click.argument("trace", metavar="[TRACE]", required=False)
@click.option("--cluster", metavar="FILE|8x8", required=True, help="Nodes, or NODESxDEVICES.")
@click.option("--policy", "policies", metavar="NAME|FILE", multiple=True,
              help="May be repeated; the first is the baseline.")  # fmt: skip
@click.option("--add", "added", metavar="16xH100", multiple=True,
              help="Try every policy also with so many devices more.")  # fmt: skip
@click.option("--drain", "drained", metavar="NAME", multiple=True,
              help="Try every policy also without this node, rack or label.")  # fmt: skip
@trace_options
@drawing_options
@click.option("--seeds", type=int, default=1, show_default=True,
              help="Workloads: the recorded and others of its days, or drawn ones.")  # fmt: skip
@click.option("--until", metavar="TIME", help="Stop so long after the first submit, such as 7d.")
@click.option("--faults", metavar="FILE|WORDS",
              help="A recorded fault trace, or a climate such as mean=60d,repair=20h.")  # fmt: skip
@click.option("--checkpoint-every", metavar="TIME", help="Work between checkpoints; 0: no loss.")
@click.option("--restart-cost", metavar="TIME", help="Time each further attempt needs first.")
@click.option("--usd-per-device-hour", "usd", type=float, metavar="USD",
              help="Price of a device; else the catalogue's.")  # fmt: skip
@click.option("--html", "page", metavar="FILE", help="Write a page with plots there.")
@processes_option
@click.option("-o", "output", type=Word("format", ("table", "json")), default="table",
              metavar="FORMAT", help="table or json.")  # fmt: skip
@pass_session
def compare_command(
    session: Session,
    *,
    trace: str | None,
    cluster: str,
    policies: tuple[str, ...],
    added: tuple[str, ...],
    drained: tuple[str, ...],
    reading: TraceOptions,
    drawing: Drawing,
    seeds: int,
    until: str | None,
    faults: str | None,
    checkpoint_every: str | None,
    restart_cost: str | None,
    usd: float | None,
    page: str | None,
    processes: int | None,
    output: str,
) -> None:
    """Replay one workload under several policies and clusters, and print the differences.

    Every arm sees the same workloads, so differences are paired; with --seeds they come with a
    95 % confidence interval over the workloads.
    """
    from tercio.cli import twin_input
    from tercio.twin.recorded import recorded_waits
    from tercio.twin.resample import resample
    from tercio.twin.world import World

    if not 1 <= seeds <= _SEEDS_MAX:
        raise UserError(f"--seeds {seeds} is not from 1 to {_SEEDS_MAX}", field="seeds")
    if usd is not None and not 0 <= usd < math.inf:
        raise UserError(f"--usd-per-device-hour {usd:g} is no price", field="usd-per-device-hour")
    twin_input.check_target(page, "html")
    nodes = twin_input.load_cluster(cluster)
    plans = _plans(policies or ("default",), nodes, added, drained)
    with session.progress(f"reading {trace or drawing.model}"):
        jobs = workload(trace, reading, drawing, nodes, 0)
    workload_of = partial(resample, jobs)
    if trace is None:
        workload_of = partial(workload, None, reading, drawing, nodes)
    world = World(
        checkpoint_every_s=seconds(checkpoint_every, "checkpoint-every") or 0.0,
        restart_s=seconds(restart_cost, "restart-cost") or 0.0,
    )
    comparison, arms = _compare(
        session, plans, workload_of, seeds=seeds, world=world, faults=faults,
        prices=_prices(nodes, usd), until_s=seconds(until, "until"),
        profiles=None if trace is None else twin_input.load_pace(trace, jobs, reading.profiles),
        processes=processes,
    )  # fmt: skip
    _tell_all(session, comparison, arms, recorded_waits(jobs), page=page, output=output)


def _compare(
    session: Session,
    plans: Sequence[Plan],
    workload_of: Callable[[int], Trace],
    *,
    seeds: int,
    world: World,
    faults: str | None,
    prices: Prices,
    until_s: float | None,
    profiles: ProfileBook | None,
    processes: int | None,
) -> tuple[Comparison, list[Arm]]:
    from tercio.cli.long_run import seldom_collected
    from tercio.cli.processes import in_processes
    from tercio.cli.twin_input import load_faults
    from tercio.twin.arms import Latest, Setting, outcomes, run_one
    from tercio.twin.compare import compare

    progress = session.progress("starting the twin")
    with progress, seldom_collected():
        setting = Setting(
            plans=plans,
            workload_of=Latest(workload_of),
            seeds=seeds,
            world=world,
            faults=partial(load_faults, faults),
            prices=prices,
            weights=_weights(plans[0], workload_of(0)),
            until_s=until_s,
            profiles=profiles,
        )
        runs = in_processes(
            run_one, setting, setting.runs(), processes=processes,
            tell=lambda _, done, whole: _tell(progress, done, whole),
        )  # fmt: skip
        found = outcomes(setting, runs)
    arms = [outcome.arm for outcome in found]
    comparison = compare(
        [plan.name for plan in plans],
        [outcome.figures for outcome in found],
        [arm.result for arm in arms],
        [sum(arm.node_devices) for arm in arms],
    )
    return comparison, arms


def _tell_all(
    session: Session,
    comparison: Comparison,
    arms: Sequence[Arm],
    recorded: Waits | None,
    *,
    page: str | None,
    output: str,
) -> None:
    from tercio.cli.output import write, write_body

    notes = list(dict.fromkeys(note for arm in arms for note in arm.result.warnings))
    told = None if recorded is None else _recorded_text(recorded)
    if page is not None:
        _write_page(page, comparison, arms, [*([told] if told else []), *notes])
    if output == "json":
        write_body(_body(comparison, arms, recorded, notes))
    else:
        print_comparison(session, comparison)
        if told:
            write(f"\n{told}")
        for note in notes:
            session.warn(note)
    if page is not None:
        session.note(f"wrote {page}")


def _plans(
    policies: Sequence[str],
    nodes: tuple[NodeSpec, ...],
    added: Sequence[str],
    drained: Sequence[str],
) -> list[Plan]:
    """Return every policy on the cluster as it is, then on the changed one."""
    from tercio.cli.twin_input import load_discipline
    from tercio.twin.arms import Plan
    from tercio.twin.change import clusters
    from tercio.twin.trace import Trace

    changed = clusters(nodes, add=added, drain=drained)
    names = [Path(policy).name.removesuffix(".yaml") for policy in policies]
    if len(dict.fromkeys(names)) < len(names):
        names = list(policies)
    if len(dict.fromkeys(names)) < len(names):
        raise UserError("the same --policy stands twice", field="policy")
    for policy in policies:
        # Refused here, before a long log is read.
        load_discipline(policy, Trace(jobs=(), source="", kind=""))
    return [
        Plan(name=name + suffix, discipline=partial(load_discipline, policy), nodes=where)
        for suffix, where in changed
        for name, policy in zip(names, policies, strict=True)
    ]


def _weights(plan: Plan, jobs: Trace) -> Mapping[str, float]:
    """Return the weights that the baseline's policy gives to the queues of the trace."""
    from tercio.model.queue import walk_queues

    known = walk_queues(plan.discipline(jobs).policy)
    return {str(path): float(queue.weight) for path, queue in known.items()}


def _prices(nodes: Sequence[NodeSpec], usd: float | None) -> Prices:
    """Return price and power of the most frequent device type, from the catalogue."""
    from tercio.cli.sizing_input import load_catalogue
    from tercio.sizing.cost import device_price, facility_power_w
    from tercio.twin.stats import Prices

    counts: dict[str, int] = {}
    for node in nodes:
        for device in node.devices:
            counts[device.type] = counts.get(device.type, 0) + 1
    try:
        gpu = load_catalogue(None).gpu(max(counts, key=lambda name: counts[name]))
    except (UserError, ValueError):
        return Prices(usd_per_device_h=usd)
    price = device_price(load_catalogue(None), gpu, gpus=sum(counts.values()))
    if usd is None and price is not None:
        usd = price.usd_h
    return Prices(
        usd_per_device_h=usd,
        busy_w=facility_power_w(gpu, gpus=1),
        idle_w=facility_power_w(gpu, gpus=1, board_ratio=_IDLE_RATIO),
    )


_IDLE_RATIO = 0.1
"""Board power of an idle device over its limit: 60 to 75 W of 700 W for an H100 SXM."""


def _tell(progress: object, done: int, whole: int) -> None:
    from tercio.cli.human import bar
    from tercio.cli.progress import Progress

    if isinstance(progress, Progress):
        progress.say(f"{bar(done / whole, width=20)} run {done} of {whole}")


def _write_page(
    path: str, comparison: Comparison, arms: Sequence[Arm], notes: Sequence[str]
) -> None:
    from tercio.twin.report import render

    first, *others = comparison.arms
    title = f"{first} against {', '.join(others)}" if others else f"{first} on its own"
    text = render(comparison, arms, title=title, notes=notes)
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}", field="html") from error


def _recorded_text(waits: Waits) -> str:
    from tercio.twin.report import figure_text

    values = (waits.mean_s, waits.p50_s, waits.p99_s)
    mean, median, most = (figure_text("_s", value) for value in values)
    return (
        f"in the log itself {waits.jobs:,} jobs waited: mean {mean}, median {median},"
        f" 99 % within {most}"
    )


def _body(
    comparison: Comparison, arms: Sequence[Arm], recorded: Waits | None, notes: Sequence[str]
) -> bytes:
    import msgspec

    fields: dict[str, Any] = msgspec.to_builtins(comparison)
    return msgspec.json.encode(
        {
            "schema": "tercio/v1",
            "kind": "TwinComparison",
            "trace": arms[0].result.source,
            **fields,
            "recorded_waits": None if recorded is None else msgspec.to_builtins(recorded),
            "warnings": list(notes),
        }
    )


def print_comparison(session: Session, comparison: Comparison) -> None:
    """Print the arms side by side; on a terminal too narrow for that, each with the first."""
    from tercio.cli.output import print_table, write

    others = range(1, len(comparison.arms))
    whole = _columns(comparison, others)
    if len(others) > 1 and not _fits(session, whole, comparison.rows):
        for other in others:
            print_table(session, _columns(comparison, [other]), comparison.rows)
            if other != others[-1]:
                write("")
    else:
        print_table(session, whole, comparison.rows)
    _print_waits(session, comparison, "wait by gang size", "DEVICES", comparison.waits_by_size)
    _print_waits(session, comparison, "wait by queue", "QUEUE", comparison.waits_by_queue)


def _columns(comparison: Comparison, others: Iterable[int]) -> list[Column[Row]]:
    """Return the columns of the first arm, and of some others with how they differ from it."""
    from tercio.cli.output import Column
    from tercio.twin.report import figure_text, interval_text, judged_text

    def value(number: int) -> Any:
        return lambda row: figure_text(row.key, row.values[number])

    def gap(number: int) -> Any:
        return lambda row: judged_text(row.key, row.differences[number])

    def sure(number: int) -> Any:
        return lambda row: interval_text(row.key, row.differences[number])

    arms = comparison.arms
    columns: list[Column[Row]] = [
        Column("FIGURE", "title", lambda row: row.title, is_flexible=True),
        Column(arms[0], "value0", value(0), is_right=True),
    ]
    for number in others:
        columns += [
            Column(arms[number], f"value{number}", value(number), is_right=True),
            Column("DIFFERENCE", f"gap{number}", gap(number), is_right=True),
            Column("95 % INTERVAL", f"sure{number}", sure(number), is_right=True, spare=1),
        ]
    return columns


def _fits(session: Session, columns: Sequence[Column[Row]], rows: Sequence[Row]) -> bool:
    from tercio.cli.output import table_lines

    width = session.width()
    lines = table_lines(session, columns, rows, width=None, has_header=False)
    return width is None or all(len(line) <= width for line in lines)


def _print_waits(
    session: Session,
    comparison: Comparison,
    title: str,
    what: str,
    classes: Mapping[str, Sequence[Waits | None]],
) -> None:
    from tercio.cli.output import Column, print_table, write
    from tercio.twin.report import figure_text

    def told(number: int) -> Any:
        def text(row: tuple[str, Sequence[Waits | None]]) -> str:
            waits = row[1][number]
            if waits is None:
                return "-"
            return f"{figure_text('_s', waits.mean_s)}, {figure_text('_s', waits.p99_s)}"

        return text

    if len(classes) < 2:
        return
    which = "" if comparison.seeds == 1 else f", mean of {comparison.seeds} workloads"
    write("")
    write(session.paint(f"{title}{which}: mean, 99 % within", "bold"))
    columns: list[Column[Any]] = [Column(what, "class", lambda row: row[0])]
    columns += [
        Column(arm, f"arm{number}", told(number), is_right=True)
        for number, arm in enumerate(comparison.arms)
    ]
    print_table(session, columns, list(classes.items())[:20], indent="  ")
