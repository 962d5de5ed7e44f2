from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tercio.store.journal import Journal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "journal.db"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    opened = Journal.open(path)
    yield opened
    opened.close()
