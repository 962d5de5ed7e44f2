"""`tercio classify`: what a kernel, NCCL or training log says about the hardware. No server."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from tercio.cli.human import quantity
from tercio.cli.verbs import Verb, Word
from tercio.errors import UserError

if TYPE_CHECKING:
    from io import BufferedReader

    from tercio.health.classify import Classifier
    from tercio.health.finding import Classification, Incident, Target
    from tercio.health.table import FaultTable

_CHUNK_BYTES = 1 << 20
_EXIT_FOUND = 1
_EXIT_UNREADABLE = 2


@click.command(
    cls=Verb,
    examples="""
    tercio classify /var/log/kern.log
    dmesg | tercio classify -
    journalctl -k -o short-iso | tercio classify - -o json
    """,
)
@click.argument("log", metavar="FILE|-")
@click.option("--driver", metavar="VERSION", help="GPU driver version, for NVLink 5 lines.")
@click.option("--overrides", metavar="FILE", help="The site's own verdicts (TOML).")
@click.option(
    "-o",
    "output",
    type=Word("format", ("table", "json", "jsonl")),
    metavar="FORMAT",
    default="table",
    help="table, json, or jsonl: one finding a line.",
)
def command(log: str, driver: str | None, overrides: str | None, output: str) -> None:
    """Say what the faults in a log mean and what to do about them.

    Reads any mixture of kernel (dmesg, journald, syslog), NCCL and training log lines from FILE
    or, with -, from standard input.

    Exit code: 0 nothing at error or worse, 1 something, 2 the log cannot be read.
    """
    try:
        status = _classify(log, driver=driver, overrides=overrides, output=output)
    except UserError as error:
        click.echo(f"error: {error.message}", err=True)
        if error.hint:
            click.echo(f"hint: {error.hint}", err=True)
        status = _EXIT_UNREADABLE
    sys.exit(status)


def _classify(log: str, *, driver: str | None, overrides: str | None, output: str) -> int:
    from tercio.health.classify import Classifier
    from tercio.health.finding import Severity

    classifier = Classifier(_fault_table(overrides), driver_branch=_driver_branch(driver))
    if output == "jsonl":
        classification = _stream(log, classifier)
    else:
        for text in _chunks(log):
            classifier.feed(text)
        classification = classifier.finish()
        if output == "json":
            _print_json(classification)
        else:
            _print_table(classification)
    worst = classification.worst
    return _EXIT_FOUND if worst is not None and worst.rank >= Severity.ERROR.rank else 0


def _fault_table(overrides: str | None) -> FaultTable:
    from tercio.assets import load_table
    from tercio.health.table import parse_overrides, parse_table

    table = parse_table(load_table("health/faults.csv"), load_table("health/patterns.toml"))
    if overrides is None:
        return table
    try:
        text = Path(overrides).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {overrides}: {_reason(error)}", field="overrides") from error
    return table.with_overrides(parse_overrides(text))


def _driver_branch(version: str | None) -> int | None:
    from tercio.health.parse import driver_branch_of

    if version is None:
        return None
    branch = driver_branch_of(version)
    if branch is None:
        raise UserError(
            f"--driver {version!r} is not a driver version",
            field="driver",
            hint="give it as nvidia-smi prints it, for example 575.57.08",
        )
    return branch


def _chunks(log: str) -> Iterator[str]:
    """Yield the log in pieces. Bytes that are no UTF-8 are replaced: a log is never refused."""
    import codecs

    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    try:
        if log == "-":
            # read1 returns what is there, so that a followed log is classified as it grows.
            stream = cast("BufferedReader", sys.stdin.buffer)
            while piece := stream.read1(_CHUNK_BYTES):
                yield decoder.decode(piece)
        else:
            with Path(log).open("rb") as file:
                while piece := file.read(_CHUNK_BYTES):
                    yield decoder.decode(piece)
    except (OSError, ValueError) as error:
        raise UserError(
            f"cannot read {log}: {_reason(error)}",
            field="log",
            hint="give a readable file, or - for standard input",
        ) from error
    yield decoder.decode(b"", final=True)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _stream(log: str, classifier: Classifier) -> Classification:
    import msgspec

    from tercio.health.wire import finding_body

    printed = 0
    for text in _chunks(log):
        for finding in classifier.feed(text):
            click.echo(msgspec.json.encode(finding_body(finding)))
            printed += 1
    classification = classifier.finish()
    for finding in classification.findings[printed:]:
        click.echo(msgspec.json.encode(finding_body(finding)))
    return classification


def _print_json(classification: Classification) -> None:
    import msgspec

    from tercio.health.wire import classification_body

    click.echo(msgspec.json.encode(classification_body(classification)))


def _print_table(classification: Classification) -> None:
    lines = quantity(classification.line_count, "line")
    if not classification.findings:
        click.echo(f"no faults in {lines} (fault table of {classification.table_date})")
        return
    rows = [("LINE", "SEVERITY", "CODE", "WHERE", "DO", "LINES", "MEANING")]
    rows += [_incident_row(incident, classification) for incident in classification.incidents]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        click.echo("  ".join([*cells, row[-1]]))
    findings = quantity(len(classification.findings), "finding")
    incidents = quantity(len(classification.incidents), "incident")
    click.echo(f"{findings} in {incidents}, {lines} (fault table of {classification.table_date})")


def _incident_row(
    incident: Incident, classification: Classification
) -> tuple[str, str, str, str, str, str, str]:
    root = next(f for f in classification.findings if f.line == incident.root_line)
    family = {"xid": "Xid ", "sxid": "SXid "}.get(root.fault_class, "")
    return (
        str(incident.root_line),
        incident.severity.value,
        family + root.code,
        _where(incident.target),
        "cleared" if incident.cleared else incident.action.value,
        str(len(incident.findings)),
        root.meaning,
    )


def _where(target: Target) -> str:
    parts = [target.pci, target.port, target.device]
    if target.gi is not None:
        parts.append(f"MIG {target.gi}")
    if target.link is not None:
        parts.append(f"link {target.link}")
    if target.rank is not None:
        parts.append(f"rank {target.rank}")
    if target.pid is not None and not any(parts):
        parts.append(f"pid {target.pid}")
    return " ".join(part for part in parts if part) or "-"
