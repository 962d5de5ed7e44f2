"""Tercio: the control plane for GPU clusters.

>>> import tercio
>>> client = tercio.Client("http://127.0.0.1:7400", token="secret")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tercio.client import Client as Client

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    # The client is imported on first use, so that a part that needs none does not pay for it.
    if name == "Client":
        from tercio.client import Client

        return Client
    raise AttributeError(f"module 'tercio' has no attribute {name!r}")
