"""The options of `tercio site add ray NAME`, and the engine made from them."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated, Final

import msgspec

from tercio.engines.base import Engine
from tercio.engines.ray.settings import RaySettings
from tercio.engines.registry import SiteRoom
from tercio.errors import UserError
from tercio.model.ids import SiteName

_NAMESPACE_FILE: Final = "ray-namespace"


def _text(description: str) -> msgspec.Meta:
    return msgspec.Meta(extra_json_schema={"description": description})


class RayOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a person says about a Ray cluster; see `RaySettings` for the rest."""

    address: Annotated[
        str,
        _text("the head, HOST:PORT from a machine of the cluster, else ray://HOST:10001."),
    ] = ""
    node_dir: Annotated[
        str, _text("directory on every node for logs and records; default: one under /tmp.")
    ] = ""
    device_type: Annotated[str, _text("type of the accelerators where Ray names none.")] = ""
    poll: Annotated[float, _text("seconds between two looks at the cluster; default 2.")] = 2.0
    lost_after: Annotated[
        float, _text("seconds of silence after which its nodes count as lost; default 120.")
    ] = 120.0

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        host, colon, port = self.address.removeprefix("ray://").rpartition(":")
        if not (host and colon and port.isdigit()):
            raise ValueError("--address: write HOST:PORT of the head, such as head:6379")
        if self.node_dir and not self.node_dir.startswith("/"):
            raise ValueError("--node-dir: write an absolute path")
        if self.poll < 0.1:
            raise ValueError("--poll: write at least 0.1 seconds")


def connect(site: SiteName, options: msgspec.Struct, room: SiteRoom) -> Engine:
    """Return the engine of a Ray site, not open yet. Raises UserError."""
    from tercio.engines.ray.engine import RayEngine

    assert isinstance(options, RayOptions)
    settings = RaySettings(
        address=options.address,
        namespace=_namespace(site, room.state_dir / "sites" / site),
        node_dir=options.node_dir or None,
        device_type=options.device_type,
        poll_s=options.poll,
        lost_after_s=options.lost_after,
    )
    return RayEngine(site=site, settings=settings, clock=room.clock, workdir_of=room.workdir_of)


def _namespace(site: SiteName, directory: Path) -> str:
    """Return this server's own namespace on the cluster, drawn once and kept.

    By it a restarted server finds its tasks, and two servers with one cluster never take each
    other's for strays.
    """
    path = directory / _NAMESPACE_FILE
    try:
        if not path.exists():
            directory.mkdir(parents=True, exist_ok=True)
            path.write_text(f"tercio-{site}-{secrets.token_hex(4)}", encoding="utf-8")
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}", field="state_dir") from None
