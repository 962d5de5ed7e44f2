"""Reads the packaged tables: the only I/O that sizing needs.

Files are CSV or JSON under `assets_data`, gzipped where large, each with a source column or a line
in the NOTICE beside it. Pure packages take the readers below as arguments.
"""

from __future__ import annotations

import csv
import gzip
import io
from functools import cache
from importlib import resources


@cache
def read_asset(name: str) -> bytes:
    """The bytes of one packaged file under `assets_data`, gunzipped when it ends in .gz."""
    raw = resources.files("tercio").joinpath("assets_data", *name.split("/")).read_bytes()
    return gzip.decompress(raw) if name.endswith(".gz") else raw


def read_rows(name: str) -> list[dict[str, str]]:
    """The rows of one packaged CSV, every value a string."""
    return list(csv.DictReader(io.StringIO(read_asset(name).decode("utf-8"))))
