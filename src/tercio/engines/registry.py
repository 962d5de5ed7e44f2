"""Engines by kind, imported on first use, so that an SDK is needed only where it is used.

>>> sorted(kinds())
['local', 'ray', 'sim']
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import MappingProxyType
from typing import Final, cast

import msgspec

from tercio.engines.base import Engine
from tercio.errors import UserError, did_you_mean


class EngineKind(msgspec.Struct, frozen=True, kw_only=True):
    """Where an engine's class is, and how to get what it needs.

    Attributes:
        path: `module:Class`.
        install: shown when the module cannot be imported.
    """

    path: str
    install: str


_KINDS: Final = MappingProxyType(
    {
        "local": EngineKind(
            path="tercio.engines.local.engine:LocalEngine",
            install="the local engine needs Linux and the package's own dependencies",
        ),
        "ray": EngineKind(
            path="tercio.engines.ray.engine:RayEngine",
            install="pip install 'tercio[ray]', with the Ray and the Python of the cluster",
        ),
        "sim": EngineKind(
            path="tercio.engines.sim.engine:SimEngine",
            install="the simulated engine needs the package's own dependencies",
        ),
    }
)


def kinds() -> tuple[str, ...]:
    """Return the known kinds."""
    return tuple(_KINDS)


def engine_class(kind: str) -> Callable[..., Engine]:
    """Return the class of an engine; call it with that engine's own settings.

    Raises UserError for an unknown kind (`invalid`) and for one whose requirements are not
    installed (`unsupported`, with the install hint).
    """
    if kind not in _KINDS:
        hint = did_you_mean(kind, _KINDS) or f"known engines: {', '.join(_KINDS)}"
        raise UserError(f"no engine is called '{kind}'", hint=hint, field="engine")
    return load(kind, _KINDS[kind])


def load(kind: str, entry: EngineKind) -> Callable[..., Engine]:
    """Import the class of one entry; see `engine_class`."""
    module, _, name = entry.path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise UserError(
            f"the {kind} engine cannot be used here: {error}",
            code="unsupported",
            hint=entry.install,
        ) from error
    return cast("Callable[..., Engine]", found)
