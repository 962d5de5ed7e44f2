from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def root() -> Iterator[Path]:
    """A tasks directory. pytest's own let no other user through, and tasks may be other users."""
    directory = Path(tempfile.mkdtemp(prefix="tercio-test-"))
    directory.chmod(0o711)
    yield directory / "tasks"
    shutil.rmtree(directory)
