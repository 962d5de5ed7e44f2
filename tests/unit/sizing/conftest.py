"""Typed tables, built once."""

from __future__ import annotations

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
)


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
