"""The web page: serves the bundle that is built from `ui/`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

STATIC: Final = Path(__file__).parent / "static"


def is_built(static: Path = STATIC) -> bool:
    """Whether this installation has the page."""
    return (static / "index.html").is_file()
