"""Sites that people added: kept in one file of the state directory, connected by `tercio up`.

The registry says which kinds may be added; the typed options of each are the fields of its
options struct, so that a new kind needs no change here nor in the command line.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from tercio.engines.base import Engine
from tercio.engines.registry import (
    ConnectSite,
    EngineKind,
    SiteRoom,
    addable_kinds,
    kind_named,
    load,
)
from tercio.errors import UserError, did_you_mean
from tercio.model.ids import SiteName

SITES_FILE: Final = "sites.json"
RESERVED: Final = ("local", "sim")
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class Site(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One added site.

    Attributes:
        name: unique over all sites, such as `hpc`.
        kind: of its engine, such as `slurm`.
        options: as the person gave them, by name.
        added_s: when.
    """

    name: SiteName
    kind: str
    options: dict[str, Any] = {}
    added_s: float = 0.0


def read_sites(state_dir: Path) -> tuple[Site, ...]:
    """Return the sites in the order in which they were added. Raises UserError."""
    path = state_dir / SITES_FILE
    try:
        return tuple(msgspec.json.decode(path.read_bytes(), type=list[Site]))
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.MsgspecError) as failure:
        raise UserError(f"{path} cannot be read: {failure}", field="sites") from None


def write_sites(state_dir: Path, sites: tuple[Site, ...]) -> None:
    """Replace the file in one step. Raises UserError."""
    path = state_dir / SITES_FILE
    part = path.with_suffix(".new")
    try:
        if not state_dir.is_dir():
            state_dir.mkdir(parents=True, exist_ok=True)
            state_dir.chmod(0o711)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(sites), indent=2) + b"\n")
        part.replace(path)
    except OSError as failure:
        raise UserError(f"{path} cannot be written: {failure.strerror}", field="sites") from None


def find_site(sites: tuple[Site, ...], name: str) -> Site:
    """Return the site of this name. Raises UserError (`not_found`)."""
    for site in sites:
        if site.name == name:
            return site
    hint = did_you_mean(name, [s.name for s in sites]) or "see 'tercio site list'"
    raise UserError(f"no site was added as '{name}'", code="not_found", hint=hint, field="site")


def check_name(name: str, sites: tuple[Site, ...]) -> None:
    """Raise UserError unless a new site may have this name."""
    if not _NAME.fullmatch(name):
        hint = "use a-z, 0-9 and '-', at most 63 characters"
        raise UserError(f"'{name}' is no name for a site", hint=hint, field="name")
    if name in RESERVED:
        raise UserError(
            f"the site name '{name}' belongs to the server itself", code="conflict", field="name"
        )
    if any(site.name == name for site in sites):
        raise UserError(
            f"a site '{name}' was added before",
            code="conflict",
            hint=f"'tercio site remove {name}' first, or choose another name",
            field="name",
        )


def options_type(kind: str) -> type[msgspec.Struct]:
    """Return the options struct of a kind that people may add. Raises UserError."""
    entry = _addable(kind)
    module, _, name = entry.options.partition(":")
    return cast("type[msgspec.Struct]", getattr(importlib.import_module(module), name))


def read_options(kind: str, given: Mapping[str, object]) -> msgspec.Struct:
    """Return the typed options of a site. Raises UserError that names option and fix."""
    found = options_type(kind)
    known = [field.name for field in msgspec.structs.fields(found)]
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known) or f"options of {kind}: {', '.join(known)}"
            raise UserError(f"{kind} sites have no option '{name}'", hint=hint, field=name)
    try:
        return msgspec.convert(dict(given), found, strict=False)
    except (msgspec.ValidationError, ValueError) as failure:
        text = str(failure).replace("`", "'")
        raise UserError(f"{kind} site: {text}", field="options") from None


def connect_site(site: Site, room: SiteRoom) -> Engine:
    """Return the engine of a site, not open yet. Raises UserError, with the site's name."""
    try:
        entry = _addable(site.kind)
        options = read_options(site.kind, site.options)
        connect = load(site.kind, EngineKind(path=entry.connect, install=entry.install))
        return cast("ConnectSite", connect)(site.name, options, room)
    except UserError as error:
        hint = error.hint or f"mend it, or drop it with 'tercio site remove {site.name}'"
        raise UserError(
            f"site {site.name}: {error.message}", code=error.code, hint=hint, field=error.field
        ) from error


def _addable(kind: str) -> EngineKind:
    entry = kind_named(kind)
    if not entry.options:
        raise UserError(
            f"a {kind} site cannot be added",
            hint=f"kinds that can: {', '.join(addable_kinds())}",
            field="kind",
        )
    return entry
