"""Webhooks: one POST of a small JSON body, by the standard library, in a thread.

The address comes from a user, so only http and https are spoken, redirects are not followed,
and link-local addresses (where clouds keep the credentials of machines) are refused.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from tercio.errors import EngineError

_REDIRECT = 300
_CLIENT_ERROR = 400
_SERVER_ERROR = 500


def call(url: str, body: Mapping[str, str], *, timeout_s: float) -> None:
    """Send the body. Blocks for at most about twice `timeout_s`.

    Raises:
        EngineError: not delivered; `retryable` says whether another try may succeed.
    """
    try:
        parts = urlsplit(url)
        given_port = parts.port
    except ValueError as failure:
        raise _failure(f"the address makes no sense: {failure}", retryable=False) from failure
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _failure("the address must begin with http:// or https://", retryable=False)
    try:
        port = given_port or (443 if parts.scheme == "https" else 80)
        address = _resolve(parts.hostname, port)
        connection = _connect(parts.scheme, parts.hostname, port, address, timeout_s)
        try:
            connection.request(
                "POST",
                (parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
                body=msgspec.json.encode(dict(body)),
                headers={"Content-Type": "application/json", "User-Agent": "tercio"},
            )
            status = connection.getresponse().status
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, ValueError) as failure:
        raise _failure(str(failure) or type(failure).__name__, retryable=True) from failure
    if status >= _REDIRECT:
        is_passing = status >= _SERVER_ERROR or status in (408, 429)
        kind = "redirects are not followed" if status < _CLIENT_ERROR else "refused"
        raise _failure(f"answered {status} ({kind})", retryable=is_passing)


def _resolve(host: str, port: int) -> str:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    address = str(found[0][4][0])
    number = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(number, ipaddress.IPv6Address) and number.ipv4_mapped is not None:
        number = number.ipv4_mapped
    if number.is_link_local:
        raise _failure(f"{host} is a link-local address", retryable=False)
    return address


def _connect(
    scheme: str, host: str, port: int, address: str, timeout_s: float
) -> http.client.HTTPConnection:
    # The checked address is the one that is used: the name is not asked again.
    stream = socket.create_connection((address, port), timeout=timeout_s)
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    if scheme == "https":
        try:
            stream = ssl.create_default_context().wrap_socket(stream, server_hostname=host)
        except BaseException:
            stream.close()
            raise
    connection.sock = stream
    return connection


def _failure(message: str, *, retryable: bool) -> EngineError:
    return EngineError(message, engine="webhook", operation="notify", retryable=retryable)
