"""Prints what a twin run came to."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tercio.cli.human import span
from tercio.cli.output import print_facts, print_table, write, write_body
from tercio.cli.session import Session
from tercio.errors import UserError

if TYPE_CHECKING:
    from tercio.model.sharing_views import StartAccuracy
    from tercio.twin.result import TwinResult


def tell_replay(
    session: Session,
    result: TwinResult,
    cpu_s: float,
    accuracy: StartAccuracy | None,
    *,
    form: str,
) -> None:
    """Print a run as `json` or as a page of facts."""
    if form == "json":
        write_body(msgspec.json.encode(replay_body(result, cpu_s, accuracy)))
    else:
        print_replay(session, result, cpu_s, accuracy)


def replay_body(
    result: TwinResult, cpu_s: float, accuracy: StartAccuracy | None = None
) -> dict[str, Any]:
    """The body of `-o json`; `estimates` is there when they were asked for."""
    estimates = {} if accuracy is None else {"estimates": accuracy}
    return {
        "schema": "tercio/v1",
        "kind": "TwinReplay",
        "trace": result.source,
        "policy": result.policy,
        "nodes": result.nodes,
        "devices": result.devices,
        "seed": result.seed,
        **msgspec.to_builtins(result.summary),
        "state_hash": result.state_hash,
        "cpu_s": round(cpu_s, 3),
        "warnings": list(result.warnings),
        **estimates,
    }


def print_replay(
    session: Session, result: TwinResult, cpu_s: float, accuracy: StartAccuracy | None = None
) -> None:
    """A page of facts for people."""
    sums = result.summary
    nodes = "node" if result.nodes == 1 else "nodes"
    jobs = f"{sums.jobs:,} ended"
    if sums.failed or sums.cancelled:
        jobs += f" ({sums.failed:,} failed, {sums.cancelled:,} cancelled)"
    if sums.unfinished:
        jobs += f", {sums.unfinished:,} not"
    if sums.never_fit:
        jobs += f", {sums.never_fit:,} can never fit"
    lost = ""
    if sums.lost_device_h or sums.down_device_h:
        lost = f"{sums.lost_device_h:,.1f} device hours of work, {sums.down_device_h:,.1f} down"
    print_facts(
        session,
        [
            ("trace", result.source),
            ("cluster", f"{result.nodes:,} {nodes}, {result.devices:,} devices"),
            ("policy", result.policy),
            ("jobs", jobs),
            ("completion", _spread(sums.mean_jct_s, sums.p50_jct_s, sums.p95_jct_s,
                                   sums.p99_jct_s)),
            ("wait", _spread(sums.mean_wait_s, sums.p50_wait_s, sums.p95_wait_s,
                             sums.p99_wait_s)),
            ("makespan", span(sums.makespan_s)),
            ("used", f"{sums.utilization_ratio:.1%} of the devices"),
            ("goodput", f"{sums.goodput_ratio:.1%} of the time held" if lost else ""),
            ("evictions", f"{sums.evictions:,}" if sums.evictions else ""),
            ("faults", f"{sums.faults:,}" if sums.faults else ""),
            ("lost", lost),
            ("took", f"{cpu_s:.1f} s of CPU, {sums.events:,} journal entries"),
        ],
    )  # fmt: skip
    if accuracy is not None:
        _print_estimates(session, accuracy)
    for warning in result.warnings:
        session.warn(warning)


def _print_estimates(session: Session, accuracy: StartAccuracy) -> None:
    """How start estimates came out, as 'tercio queue accuracy' shows it."""
    from tercio.cli.sharing import START_ACCURACY

    write("")
    if not accuracy.rows:
        write("no waiting job was told when it starts")
        return
    write(session.paint("start estimates: medians; 80 % are meant to lie inside", "bold"))
    print_table(session, START_ACCURACY.columns, accuracy.rows)


def _spread(mean_s: float, p50_s: float, p95_s: float, p99_s: float) -> str:
    return (
        f"mean {span(mean_s)}, median {span(p50_s)}, 95 % within {span(p95_s)}, "
        f"99 % within {span(p99_s)}"
    )


def write_records(path: str, result: TwinResult) -> None:
    """Write one line per job as CSV."""
    try:
        with Path(path).open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(_rows(result))
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}", field="records") from error


def _rows(result: TwinResult) -> Iterator[list[object]]:
    fields = (
        "id", "queue", "user", "devices", "submit_s", "start_s", "end_s", "held_s", "run_s",
        "attempts", "evictions", "lost_device_s", "node", "state",
    )  # fmt: skip
    yield list(fields)
    for job in result.jobs:
        yield ["" if (value := getattr(job, name)) is None else value for name in fields]
