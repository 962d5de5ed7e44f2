"""Completion of live names within 150 ms: from the server, or from what was seen a moment ago."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import click

from tercio.cli.session import Session

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_TIMEOUT_S: Final = 0.1
_KEPT_S: Final = 5.0
_LIMIT: Final = 500


class Name(click.ParamType):  # type: ignore[type-arg] # no generic before click 8.2
    """The name of a job, node, queue or token; completed with those that exist.

    Args:
        kinds: which of `job`, `node`, `queue` and `token`, in the order they are offered.
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
        prefix, slash, _ = incomplete.partition("/")
        kinds, written = self.kinds, ""
        if slash and prefix in self.kinds:
            # `node/n1`: names of one kind, written with it.
            written = f"{prefix}/"
            kinds = (prefix,)
        names = [(written + n, text) for kind in kinds for n, text in live_names(session, kind)]
        found = [CompletionItem(n, help=text) for n, text in names if n.startswith(incomplete)]
        if not found and "job" in kinds:
            found = _jobs_called(names, incomplete, written)
        return found


def among(words: Sequence[str]) -> Callable[..., list[str]]:
    """Return a completer of fixed words, for what the server checks."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
        return [word for word in words if word.startswith(incomplete)]

    return complete


def _jobs_called(
    names: list[tuple[str, str]], incomplete: str, written: str
) -> list[CompletionItem]:
    """Return the names of jobs that begin so; a job's remark is its name and its state."""
    from click.shell_completion import CompletionItem

    found: dict[str, CompletionItem] = {}
    for job_id, text in names:
        called = written + text.partition(" ")[0]
        if called.startswith(incomplete) and called not in found:
            found[called] = CompletionItem(called, help=job_id.removeprefix(written))
    return list(found.values())


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
            case "token":
                return [(token.token_id, token.user) for token in client.tokens().rows]
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
