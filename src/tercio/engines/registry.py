"""Engines by kind, imported on first use, so that an SDK is needed only where it is used.

>>> sorted(kinds())
['local', 'ray', 'sim', 'slurm']
>>> addable_kinds()
('ray', 'slurm')
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Final, cast

import msgspec

from tercio.engines.base import Clock, Engine
from tercio.errors import UserError, did_you_mean
from tercio.model.ids import SiteName


class EngineKind(msgspec.Struct, frozen=True, kw_only=True):
    """Where an engine's class is, and how to get what it needs.

    Attributes:
        path: `module:Class`.
        install: shown when the module cannot be imported.
        options: `module:Struct` with the typed options of `tercio site add`; empty for an
            engine that people do not add. The module is imported by the command line.
        connect: `module:function`, a `ConnectSite` for such a site.
    """

    path: str
    install: str
    options: str = ""
    connect: str = ""


class SiteRoom(msgspec.Struct, frozen=True, kw_only=True):
    """What a server lends to the engine of an added site.

    Attributes:
        clock: seconds since the epoch.
        state_dir: of the server; an engine keeps what it needs below `sites/NAME`.
        workdir_of: path of the tar.gz of a snapshot id; raises UserError for an unknown one.
    """

    clock: Clock
    state_dir: Path
    workdir_of: Callable[[str], Path]


ConnectSite = Callable[[SiteName, msgspec.Struct, SiteRoom], Engine]
"""Makes the engine of an added site from its typed options; opens nothing yet."""


_KINDS: Final = MappingProxyType(
    {
        "local": EngineKind(
            path="tercio.engines.local.engine:LocalEngine",
            install="the local engine needs Linux and the package's own dependencies",
        ),
        "ray": EngineKind(
            path="tercio.engines.ray.engine:RayEngine",
            install="pip install 'tercio[ray]', with the Ray and the Python of the cluster",
            options="tercio.engines.ray.options:RayOptions",
            connect="tercio.engines.ray.options:connect",
        ),
        "sim": EngineKind(
            path="tercio.engines.sim.engine:SimEngine",
            install="the simulated engine needs the package's own dependencies",
        ),
        "slurm": EngineKind(
            path="tercio.engines.slurm.engine:SlurmEngine",
            install="the Slurm engine needs the package's own dependencies",
            options="tercio.engines.slurm.options:SlurmOptions",
            connect="tercio.engines.slurm.connect:connect",
        ),
    }
)


def kinds() -> tuple[str, ...]:
    """Return the known kinds."""
    return tuple(_KINDS)


def addable_kinds() -> tuple[str, ...]:
    """Return the kinds of which people may add sites."""
    return tuple(kind for kind, entry in _KINDS.items() if entry.options)


def kind_named(kind: str) -> EngineKind:
    """Return the entry of a kind. Raises UserError with the nearest names."""
    if kind not in _KINDS:
        hint = did_you_mean(kind, _KINDS) or f"known engines: {', '.join(_KINDS)}"
        raise UserError(f"no engine is called '{kind}'", hint=hint, field="engine")
    return _KINDS[kind]


def engine_class(kind: str) -> Callable[..., Engine]:
    """Return the class of an engine; call it with that engine's own settings.

    Raises UserError for an unknown kind (`invalid`) and for one whose requirements are not
    installed (`unsupported`, with the install hint).
    """
    return load(kind, kind_named(kind))


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
