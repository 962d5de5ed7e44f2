"""Completion of live names within 150 ms: from the server, or from what was seen a moment ago."""

from __future__ import annotations

import hashlib
import os
import time
from typing import TYPE_CHECKING, Final

import click

from tercio.cli.session import Session

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_TIMEOUT_S: Final = 0.1
_KEPT_S: Final = 5.0
_LIMIT: Final = 500


class Name(click.ParamType):  # type: ignore[type-arg] # no generic before click 8.2
    """The name of a job, node or queue; completed with those that exist.

    Args:
        kinds: which of `job`, `node` and `queue`, in the order they are offered.
    """

    name = "name"

    def __init__(self, *kinds: str) -> None:
        self.kinds = kinds

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        """Return the names that begin with what was typed."""
        from click.shell_completion import CompletionItem

        session = ctx.find_object(Session) or Session()
        names = [name for kind in self.kinds for name in live_names(session, kind)]
        return [
            CompletionItem(name, help=text) for name, text in names if name.startswith(incomplete)
        ]


def live_names(session: Session, kind: str) -> list[tuple[str, str]]:
    """Return the names of a kind with a remark each; empty when the server does not answer."""
    from tercio.client import find_server
    from tercio.errors import UserError

    try:
        address = find_server(session.url, session.token())
        cache = _cache_path(address.url, kind)
        cached = _read_cache(cache)
        if cached is None:
            cached = _ask(session, kind)
            _write_cache(cache, cached)
    except (UserError, OSError):
        return []
    return cached


def _ask(session: Session, kind: str) -> list[tuple[str, str]]:
    """Ask the server, once and quickly."""
    from tercio.client import Client

    with Client(session.url, session.token(), timeout_s=_TIMEOUT_S) as client:
        match kind:
            case "job":
                jobs = client.jobs(limit=_LIMIT).rows
                return [(job.id, f"{job.name} {job.state}") for job in jobs]
            case "node":
                return [(node.name, str(node.state)) for node in client.nodes(limit=_LIMIT).rows]
            case _:
                return [(queue.path, "queue") for queue in client.queues(limit=_LIMIT).rows]


def _cache_path(url: str, kind: str) -> str:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    digest = hashlib.sha256(url.encode()).hexdigest()[:16]
    return os.path.join(base, "tercio", f"names-{kind}-{digest}")


def _read_cache(path: str) -> list[tuple[str, str]] | None:
    try:
        if not 0 <= time.time() - os.stat(path).st_mtime < _KEPT_S:
            return None
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    return [(name, text) for name, _, text in (line.partition("\t") for line in lines)]


def _write_cache(path: str, names: list[tuple[str, str]]) -> None:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as file:
        file.writelines(f"{name}\t{text}\n" for name, text in names)
    os.replace(temporary, path)
