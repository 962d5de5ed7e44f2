"""Finds the server: which URL, and which token, when the caller named none.

Order: argument, environment (`TERCIO_URL`, `TERCIO_TOKEN`), configuration (`client.url`,
`client.token_file`), then the files that a server on this machine writes into its state
directory: `server.json` and, readable by its owner only, `token`.
"""

from __future__ import annotations

import ipaddress
import os
from urllib.parse import urlsplit

import msgspec

from tercio import config
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
        UserError: `unavailable` when nothing names a server; `invalid` for a bad
            configuration.
    """
    source = "the caller"
    if url is None:
        url, source = os.environ.get("TERCIO_URL") or None, "TERCIO_URL"
    if token is None:
        token = os.environ.get("TERCIO_TOKEN") or None
    if url is not None and token is not None:
        return Address(url=url, token=token, source=source)
    settings, origins = config.load()
    if url is None and settings.client.url:
        url, source = settings.client.url, origins["client.url"]
    is_here = url is None or _is_loopback(url)
    if url is None:
        path = os.path.join(settings.state_dir, "server.json")
        url, source = _read_server_file(path), path
    if token is None:
        token = _token(settings, is_here=is_here)
    return Address(url=url, token=token, source=source)


def _token(settings: config.Config, *, is_here: bool) -> str | None:
    named = settings.client.token_file
    if not named:
        # This machine's admin token is for this machine's server, and for nobody else.
        if not is_here:
            return None
        return _read_text(os.path.join(settings.state_dir, "token"))
    token = _read_text(os.path.expanduser(named))
    if token is None:
        raise UserError(
            f"client.token_file names {named}, which cannot be read or is empty",
            hint="write the token into it, or set TERCIO_TOKEN",
            field="client.token_file",
        )
    return token


def _is_loopback(url: str) -> bool:
    """Whether the URL names this machine by its loopback."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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
    except (OSError, UnicodeDecodeError):
        return None
