"""`tercio doctor`."""

from __future__ import annotations

from typing import Final

import click
import msgspec

from tercio.cli.checks import Check, run_checks
from tercio.cli.errors import ExitCode
from tercio.cli.output import Column, Listing, Output, output_options, show_rows, write
from tercio.cli.session import Session
from tercio.cli.verbs import Verb, pass_session

_MARKS: Final = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red")}

LISTING: Final[Listing[Check]] = Listing(
    (
        Column("CHECK", "name", lambda check: check.name),
        Column("STATUS", "status", lambda check: check.status),
        Column("FOUND", "text", lambda check: check.text),
        Column("FIX", "fix", lambda check: check.fix, is_flexible=True),
    ),
    Check,
    lambda check: check.name,
    "nothing was checked",
)


@click.command(cls=Verb, examples="tercio doctor\ntercio doctor -o jsonl")
@output_options
@pass_session
def command(session: Session, output: Output) -> int:
    """Check this installation and say how to mend it. Exit code 1 when something fails."""
    checks = run_checks(session)
    if output.format == "table" and not output.fields:
        for check in checks:
            _, style = _MARKS[check.status]
            label = session.paint(f"{_mark(check)} {check.status:<4}", style)
            write(f"{label}  {check.name:<10}  {check.text}")
            if check.fix:
                write(f"{'':8}{'':10}  fix: {check.fix}")
    else:
        rows = [msgspec.Raw(msgspec.json.encode(check)) for check in checks]
        show_rows(session, output, LISTING, rows)
    return ExitCode.FAILED if any(check.status == "fail" for check in checks) else ExitCode.OK


def _mark(check: Check) -> str:
    import sys

    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    return (
        _MARKS[check.status][0]
        if is_unicode
        else {"ok": "+", "warn": "!", "fail": "x"}[check.status]
    )
