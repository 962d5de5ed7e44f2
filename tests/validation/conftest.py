"""Typed tables built once, and the measured tables where they are at hand."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from tercio.assets import load_table
from tercio.sizing.calibration import Calibration
from tercio.sizing.catalogue import Catalogue
from tercio.sizing.collectives import CollectiveFits
from tercio.sizing.kernels import GemmTable
from tercio.sizing.packaged import (
    build_calibration,
    build_catalogue,
    build_collective_fits,
    build_gemm_table,
    parse_rows,
)
from tercio.sizing.validate import COLUMNS, OPTIONAL

Tables = dict[str, list[dict[str, str]]]


@pytest.fixture(scope="session")
def catalogue() -> Catalogue:
    return build_catalogue(load_table)


@pytest.fixture(scope="session")
def kernels() -> GemmTable:
    return build_gemm_table(load_table)


@pytest.fixture(scope="session")
def fits() -> CollectiveFits:
    return build_collective_fits(load_table)


@pytest.fixture(scope="session")
def calibration() -> Calibration:
    return build_calibration(load_table)


@pytest.fixture(scope="session")
def measured() -> Tables:
    where = Path(os.environ.get("TERCIO_SHARED", "../shared")) / "data" / "sizing"
    if not where.is_dir():
        pytest.skip("no measured tables: set TERCIO_SHARED to the directory that holds data/sizing")
    found: Tables = {}
    for name in (*COLUMNS, *OPTIONAL):
        plain, packed = where / f"{name}.csv", where / f"{name}.csv.gz"
        if plain.is_file():
            found[name] = parse_rows(plain.read_bytes())
        elif packed.is_file():
            found[name] = parse_rows(gzip.decompress(packed.read_bytes()))
    return found
