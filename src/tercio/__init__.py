"""Tercio: the control plane for GPU clusters.

>>> import tercio
>>> client = tercio.Client("http://127.0.0.1:7400", token="secret")

In a job, `tercio.step()` and `tercio.checkpoint()` mark how far it is; outside of one they do
nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tercio.client import Client as Client
    from tercio.marking import checkpoint as checkpoint
    from tercio.marking import step as step

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    # The client is imported on first use, so that a part that needs none does not pay for it;
    # so are the marks.
    if name == "Client":
        from tercio.client import Client

        return Client
    if name in ("step", "checkpoint"):
        from tercio import marking

        return getattr(marking, name)
    raise AttributeError(f"module 'tercio' has no attribute {name!r}")
