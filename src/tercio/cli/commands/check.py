"""`tercio check`: one node's preflight. No server."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import click

from tercio.cli.output import Column, print_table, write
from tercio.cli.session import Session
from tercio.cli.verbs import Verb, Word, pass_session

if TYPE_CHECKING:
    from tercio.collect.preflight import Check

_EXIT_PROBLEM: Final = 1
_EXIT_UNKNOWN: Final = 2
_STYLES: Final = {"ok": "green", "problem": "red", "unknown": "yellow", "skipped": "dim"}


@click.command(
    cls=Verb,
    examples="""
    tercio check
    tercio check --gpus 8 --nvlinks 18 --mount /scratch
    tercio check --load           # idle GPUs: matrix products, bandwidth, all-reduce
    tercio check -o line          # HealthCheckProgram, prolog, node-problem-detector
    """,
)
@click.option("--gpus", type=click.IntRange(0), metavar="N", help="Devices that must answer.")
@click.option("--nvlinks", type=click.IntRange(0), metavar="N", help="Active links of each GPU.")
@click.option("--mount", "mounts", multiple=True, metavar="DIR", help="Must be mounted.")
@click.option(
    "--disk", "disks", multiple=True, metavar="DIR", help="Needs room; default / and /tmp."
)
@click.option("--kernel-log", default="kmsg", metavar="kmsg|FILE", help="Which log is searched.")
@click.option("--timeout", "timeout_s", default=20.0, metavar="SECONDS", help="For the driver.")
@click.option("--load", "is_load", is_flag=True, help="Work on the GPUs too; they must be idle.")
@click.option(
    "--load-timeout", "load_timeout_s", default=120.0, metavar="SECONDS", help="For that work."
)
@click.option(
    "-o",
    "output",
    type=Word("format", ("table", "line", "json")),
    default="table",
    metavar="FORMAT",
    help="table, line or json.",
)
@pass_session
def command(
    session: Session,
    *,
    gpus: int | None,
    nvlinks: int | None,
    mounts: tuple[str, ...],
    disks: tuple[str, ...],
    kernel_log: str,
    timeout_s: float,
    is_load: bool,
    load_timeout_s: float,
    output: str,
) -> None:
    """Check this node: driver, GPUs, faults since boot, memory, links, clocks, ports, disks.

    Nothing runs on the GPUs, so it may be called while they work. With `--load` they multiply
    matrices, copy memory and reduce over all of them (PyTorch is needed): results must be right,
    and no device slower than the others.

    Exit code, as node-problem-detector wants it: 0 all well, 1 a problem, 2 something could not
    be found out.
    """
    from tercio.collect.fault_table import load_fault_table
    from tercio.collect.preflight import Wanted, preflight
    from tercio.collect.sampling import Sampler

    wanted = Wanted(gpus=gpus, nvlinks=nvlinks, mounts=mounts, disks=disks or ("/", "/tmp"))
    sampler = Sampler(timeout_s=timeout_s)
    try:
        checks = preflight(
            sample=sampler.sample, table=load_fault_table(), wanted=wanted, kernel_log=kernel_log
        )
    finally:
        sampler.close()
    if is_load:
        from tercio.collect.load_checks import load_checks

        checks = (*checks, *load_checks(timeout_s=load_timeout_s))
    _print(session, checks, output)
    sys.exit(exit_code(checks))


def exit_code(checks: tuple[Check, ...]) -> int:
    """Return 1 when something is wrong, 2 when something is not known, else 0."""
    verdicts = [check.verdict for check in checks]
    if "problem" in verdicts:
        return _EXIT_PROBLEM
    return _EXIT_UNKNOWN if "unknown" in verdicts else 0


def line(checks: tuple[Check, ...]) -> str:
    """Return the verdict in one line: the problems, else what is not known, else that all is."""
    for wanted in ("problem", "unknown"):
        bad = [f"{check.name}: {check.text}" for check in checks if check.verdict == wanted]
        if bad:
            return "; ".join(bad)
    done = sum(1 for check in checks if check.verdict == "ok")
    return f"ok: {done} checks passed"


def _print(session: Session, checks: tuple[Check, ...], output: str) -> None:
    if output == "json":
        import msgspec

        body = {
            "schema": "tercio/v1",
            "kind": "Check",
            "exit_code": exit_code(checks),
            "line": line(checks),
            "checks": checks,
        }
        write(msgspec.json.encode(body).decode())
    elif output == "line":
        write(line(checks))
    else:
        columns: tuple[Column[Check], ...] = (
            Column("CHECK", "name", lambda check: check.name),
            Column("END", "verdict", lambda c: c.verdict, lambda c: _STYLES[c.verdict]),
            Column("WHAT", "text", lambda check: check.text, is_flexible=True),
        )
        print_table(session, columns, checks)
