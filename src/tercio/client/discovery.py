"""Finds the server: which URL, and which token, when the caller named none.

Order: argument, environment (`TERCIO_URL`, `TERCIO_TOKEN`), then the files that a server on
this machine writes into its state directory: `server.json` and, readable by its owner only,
`token`.
"""

from __future__ import annotations

import os

import msgspec

from tercio.errors import UserError


class ServerFile(msgspec.Struct, frozen=True, kw_only=True):
    """Content of `server.json`: where a running server listens."""

    url: str
    pid: int = 0


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where to send requests, the token to send along (or None), and who said so."""

    url: str
    token: str | None
    source: str


def find_server(url: str | None = None, token: str | None = None) -> Address:
    """Return the server to talk to.

    Raises:
        UserError: `unavailable` when nothing names a server.
    """
    directory = state_directory()
    source = "the caller"
    if url is None:
        url, source = os.environ.get("TERCIO_URL") or None, "TERCIO_URL"
    if token is None:
        token = os.environ.get("TERCIO_TOKEN") or None
    if url is None:
        path = os.path.join(directory, "server.json")
        url, source = _read_server_file(path), path
    if token is None:
        token = _read_text(os.path.join(directory, "token"))
    return Address(url=url, token=token, source=source)


def state_directory() -> str:
    """Return the directory that a server started here by this user keeps its state in."""
    named = os.environ.get("TERCIO_STATE_DIR")
    if named:
        return named
    if os.geteuid() == 0:
        return "/var/lib/tercio"
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(
        os.path.expanduser("~"), ".local", "state"
    )
    return os.path.join(base, "tercio")


def _read_server_file(path: str) -> str:
    text = _read_text(path)
    if text is None:
        raise UserError(
            "no server was found",
            code="unavailable",
            hint="start one with `tercio up`, or name one with --url or TERCIO_URL",
        )
    try:
        return msgspec.json.decode(text.encode(), type=ServerFile).url
    except msgspec.MsgspecError as error:
        raise UserError(
            f"{path}: {error}",
            code="unavailable",
            hint="restart the server with `tercio up`, or name it with --url",
        ) from None


def _read_text(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip() or None
    except OSError:
        return None
