import os
from pathlib import Path

import pytest

from tercio.assets import load_table
from tercio.health.table import FaultTable, parse_table


@pytest.fixture(scope="session")
def table() -> FaultTable:
    return parse_table(load_table("health/faults.csv"), load_table("health/patterns.toml"))


@pytest.fixture(scope="session")
def shared_log_lines() -> Path:
    root = Path(os.environ.get("TERCIO_SHARED", Path(__file__).parents[3] / ".." / "shared"))
    path = root / "data" / "health" / "log-lines.csv"
    if not path.exists():
        pytest.skip("no shared log lines: set TERCIO_SHARED to the directory that holds data/")
    return path
