"""The fault table of this installation, with the site's own verdicts."""

from __future__ import annotations

from pathlib import Path

from tercio.assets import load_table
from tercio.errors import UserError
from tercio.health.table import FaultTable, parse_overrides, parse_table


def load_fault_table(overrides: str = "") -> FaultTable:
    """Return the packaged table, with the overrides of a file if one is named.

    Raises:
        UserError: the file cannot be read, or makes no sense.
    """
    table = parse_table(load_table("health/faults.csv"), load_table("health/patterns.toml"))
    if not overrides:
        return table
    try:
        text = Path(overrides).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {overrides}: {error}", field="health.overrides") from error
    return table.with_overrides(parse_overrides(text))
