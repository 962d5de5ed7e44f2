"""`tercio size fleet`: GPUs to buy for a workload at a wait target, by the twin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tercio.cli.session import Session
from tercio.cli.twin_trace import Drawing, TraceOptions, drawing_options, seconds, trace_options
from tercio.cli.verbs import Verb, Word, pass_session
from tercio.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tercio.model.node import NodeSpec
    from tercio.sizing.cost import Price
    from tercio.twin.fleet import FleetSize, Size
    from tercio.twin.trace import Trace

_MONTH_H = 730.0


@click.command(
    "fleet",
    cls=Verb,
    examples="""
    tercio size fleet --trace march.txt --gpus H100 --wait-p95 1h
    tercio size fleet --trace march.txt --gpus H100 --wait-p95 30m --policy new.yaml -o json
    tercio size fleet --model march.json --load 1.5 --gpus H100 --wait-p95 1h
    """,
)
@click.option("--trace", metavar="TRACE", help="A log of jobs, as of 'tercio twin replay'.")
@click.option("--gpus", metavar="TYPE", required=True, help="Device type to buy, such as H100.")
@click.option("--per-node", type=click.IntRange(1, 64), default=8, show_default=True,
              help="Devices of a node.")  # fmt: skip
@click.option("--wait-p95", "wait", metavar="TIME", required=True,
              help="Longest wait of 95 of 100 jobs, such as 1h.")  # fmt: skip
@click.option("--policy", metavar="NAME|FILE", default="easy", show_default=True,
              help="Who comes when; as of 'tercio twin replay'.")  # fmt: skip
@trace_options
@drawing_options
@click.option("--site", metavar="FILE", help="The site's own prices (YAML).")
@click.option("-o", "output", type=Word("format", ("table", "json")), default="table",
              metavar="FORMAT", help="table or json.")  # fmt: skip
@pass_session
def fleet_command(
    session: Session,
    *,
    trace: str | None,
    gpus: str,
    per_node: int,
    wait: str,
    policy: str,
    reading: TraceOptions,
    drawing: Drawing,
    site: str | None,
    output: str,
) -> None:
    """Find the fewest GPUs on which a workload waits no longer than you accept.

    The workload is replayed through the live scheduler on clusters of different sizes. Run times
    are those recorded, whatever the type; cores and memory of nodes are taken as enough.
    """
    from tercio.cli.output import write_body
    from tercio.cli.progress import Progress
    from tercio.cli.sizing_input import load_catalogue
    from tercio.cli.twin_input import load_discipline
    from tercio.cli.twin_trace import workload
    from tercio.formats.devices import parse_device
    from tercio.sizing.cost import device_price
    from tercio.twin.fleet import size_fleet

    catalogue = load_catalogue(site)
    gpu = catalogue.gpu(gpus)
    request = parse_device(f"{gpu.name}:{per_node}", field="gpus")
    nodes_of = _clusters(request.type or gpu.name, per_node)
    wait_s = seconds(wait, "wait_p95") or 0.0
    with session.progress(f"reading {trace or drawing.model}"):
        jobs, dropped = _whole(workload(trace, reading, drawing, nodes_of(1), 0))
    progress = session.progress("trying cluster sizes")

    def tell(size: Size) -> None:
        if isinstance(progress, Progress):
            progress.say(f"{size.devices:,} devices: p95 {size.wait_s / 3600:.1f} h")

    with progress:
        found = size_fleet(jobs, load_discipline(policy, jobs), nodes_of, wait_s=wait_s, tell=tell)
    price = device_price(catalogue, gpu, gpus=found.best.devices)
    if dropped:
        session.warn(f"{dropped:,} jobs without devices were left out")
    for warning in jobs.warnings:
        session.warn(warning)
    if output == "json":
        asked: dict[str, object] = {
            "gpu": gpu.name,
            "policy": policy,
            "wait_p95_s": wait_s,
            "catalogue_date": catalogue.date,
        }
        write_body(_body(found, price, asked))
    else:
        _print(session, found, gpu.name, wait_s, price)


def _clusters(type_name: str, per_node: int) -> Callable[[int], Sequence[NodeSpec]]:
    from tercio.formats.cluster import DEFAULT_SITE, make_node
    from tercio.model.resources import DeviceRequest

    one = DeviceRequest(type=type_name, count=per_node)
    nodes: list[NodeSpec] = []

    def of(count: int) -> Sequence[NodeSpec]:
        while len(nodes) < count:
            nodes.append(make_node(f"n{len(nodes) + 1}", one, site=DEFAULT_SITE))
        return nodes[:count]

    return of


def _whole(trace: Trace) -> tuple[Trace, int]:
    """Jobs with devices, of any type and with what cores and memory a node gives; and the rest."""
    import msgspec

    kept = tuple(
        msgspec.structs.replace(
            job, device_type=None, cpus_per_task=None, memory_bytes_per_task=None
        )
        for job in trace.jobs
        if job.devices_per_task
    )
    if not kept:
        raise UserError("no job of the trace asks for a device", field="trace")
    return msgspec.structs.replace(trace, jobs=kept), len(trace.jobs) - len(kept)


def _body(found: FleetSize, price: Price | None, asked: dict[str, object]) -> bytes:
    import msgspec

    usd_month = None if price is None else price.usd_h * found.best.devices * _MONTH_H
    head = {"schema": "tercio/v1", "kind": "FleetSize", **asked}
    rest = {**msgspec.to_builtins(found), "usd_per_month": usd_month, "price": price}
    return msgspec.json.encode({**head, **rest})


def _print(
    session: Session, found: FleetSize, gpu: str, wait_s: float, price: Price | None
) -> None:
    from tercio.cli.human import span
    from tercio.cli.output import Column, print_facts, print_table, write

    best = found.best
    cost = "not in the catalogue"
    if price is not None:
        month = price.usd_h * best.devices * _MONTH_H
        cost = (
            f"{month:,.0f} USD a month at {price.usd_h:.2f} USD per device-hour"
            f" ({price.provider}, {price.date})"
        )
    print_facts(
        session,
        [
            ("buy", f"{best.devices:,} {gpu} in {best.nodes:,} nodes"),
            ("wait", f"95 % within {span(best.wait_s)}, asked for {span(wait_s)}"),
            ("in use", f"{best.utilization_ratio:.0%}"),
            ("load", f"{found.load_devices:,.0f} devices on average, {found.peak_devices:,} at"
                     " most if nobody waited"),
            ("binds", found.binds),
            ("cost", cost),
        ],
    )  # fmt: skip
    write("")
    columns: list[Column[Size]] = [
        Column("NODES", "nodes", lambda row: f"{row.nodes:,}", is_right=True),
        Column("DEVICES", "devices", lambda row: f"{row.devices:,}", is_right=True),
        Column("P95 WAIT", "wait_s", lambda row: span(row.wait_s), is_right=True),
        Column("MEAN WAIT", "mean_wait_s", lambda row: span(row.mean_wait_s), is_right=True),
        Column("IN USE", "utilization_ratio", lambda row: f"{row.utilization_ratio:.0%}",
               is_right=True),
        Column("ENOUGH", "is_enough", _enough),
    ]  # fmt: skip
    print_table(session, columns, found.tried)


def _enough(size: Size) -> str:
    if size.never_fit:
        return f"{size.never_fit:,} jobs are too large"
    return "yes" if size.is_enough else "no"
