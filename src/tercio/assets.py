"""Packaged tables, read once each: catalogues, fault tables, kernel tables."""

from __future__ import annotations

from functools import cache
from importlib import resources


@cache
def load_table(name: str) -> bytes:
    """Return the bytes of a packaged table.

    Args:
        name: `package/file`, for example `health/faults.csv` for `tercio/health/tables/faults.csv`.

    Raises:
        FileNotFoundError: the package holds no such table, which is a broken installation.
    """
    package, _, file_name = name.partition("/")
    return (resources.files("tercio") / package / "tables" / file_name).read_bytes()
