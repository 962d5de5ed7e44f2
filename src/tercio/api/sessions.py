"""Signing in with a browser: one-time codes, and the cookie that one is exchanged for.

The cookie is signed, so the server keeps nothing for it and a restart signs nobody out. It names
the token it was made for, which is looked up at every use: a revoked token ends its sessions.

What a foreign page could make a browser do is refused here: a cookie counts only for a host
name of ours, never for a request that another site caused, and for a change only with a header
that no form can send and the page's own origin.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import socket
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

from tercio.api.auth import Authenticator, digest
from tercio.config import ServerConfig
from tercio.errors import UserError
from tercio.model.identity import Principal

CHANGE_HEADER: Final = "Tercio-Request"
SESSION_S: Final = 7 * 86_400
CODE_S: Final = 600.0
_CODES_MAX: Final = 1000
_ENDED_MAX: Final = 10_000
_PORT_BY_SCHEME: Final = {"http": 80, "https": 443}


class Sessions:
    """Codes and cookies of one server.

    Args:
        auth: knows the tokens in force.
        admin_secret: the cookies are signed with a key made from it, so that a new admin token
            ends every session.
        server: where it listens, and by which URL people reach it.
        now: seconds since the epoch.
    """

    def __init__(
        self,
        *,
        auth: Authenticator,
        admin_secret: str,
        server: ServerConfig,
        now: Callable[[], float],
    ) -> None:
        self._auth = auth
        self._key = hashlib.sha256(f"tercio web session\n{admin_secret}".encode()).digest()
        self._now = now
        public = urlsplit(server.public_url)
        self._public_origin = _origin(server.public_url)
        self._names = _names_of(server)
        self.base_path = public.path.rstrip("/")
        self._is_secure = bool(server.tls_cert) or public.scheme == "https"
        # Cookies are shared by the ports of a host: two servers must not overwrite each other.
        self.cookie_name = "tercio_" + hashlib.sha256(self._key).hexdigest()[:8]
        self._codes: dict[str, tuple[str, float]] = {}
        self._ended: dict[str, float] = {}

    def new_code(self, token_id: str) -> str:
        """Return a code that signs in once, within ten minutes, as the token's owner."""
        now_s = self._now()
        self._codes = {key: kept for key, kept in self._codes.items() if kept[1] > now_s}
        if len(self._codes) >= _CODES_MAX:
            raise UserError("too many sign-in codes are open", code="too_many", hint="use one")
        code = secrets.token_urlsafe(24)
        self._codes[digest(code)] = (token_id, now_s + CODE_S)
        return code

    def redeem(self, code: str) -> str:
        """Return the token id that a code stands for; the code is used up.

        Raises:
            UserError: `unauthorised` for one that is unknown, used or too old.
        """
        token_id, until_s = self._codes.pop(digest(code), ("", 0.0))
        if self._now() >= until_s:
            raise UserError(
                "the sign-in link was used already, or is older than ten minutes",
                code="unauthorised",
                hint="run `tercio web` for a fresh one",
            )
        return token_id

    def cookie(self, token_id: str) -> str:
        """Return the `Set-Cookie` value of a new session."""
        until_s = int(self._now()) + SESSION_S
        body = f"{token_id or 'admin'}.{until_s}.{secrets.token_hex(8)}"
        return self._set_cookie(f"{body}.{self._sign(body)}", SESSION_S)

    def end(self, headers: Mapping[str, str]) -> str:
        """End the session of a request; returns the `Set-Cookie` value that removes it."""
        value = self._value(headers)
        if value is not None:
            if len(self._ended) >= _ENDED_MAX:
                self._ended.pop(next(iter(self._ended)))
            self._ended[value] = self._now()
        return self._set_cookie("", 0)

    def principal(
        self, headers: Mapping[str, str], *, method: str, scheme: str
    ) -> Principal | None:
        """Return whom the request's cookie stands for, or None when it has none.

        Raises:
            UserError: `unauthorised` for a cookie that is not in force, `forbidden` for a
                request that another page caused.
        """
        value = self._value(headers)
        if value is None:
            return None
        self.check_page(headers, is_change=method not in ("GET", "HEAD"), scheme=scheme)
        body, _, mac = value.rpartition(".")
        if not hmac.compare_digest(self._sign(body).encode(), mac.encode()) or value in self._ended:
            raise _signed_out()
        token_id, until_s, _ = body.split(".")
        if self._now() >= int(until_s):
            raise _signed_out()
        return self._auth.owner("" if token_id == "admin" else token_id)

    def check_host(self, headers: Mapping[str, str]) -> None:
        """Raise `forbidden` for a host name that is not this server's (DNS rebinding)."""
        host = headers.get("host", "")
        name = _host_name(host)
        if name not in self._names and not _is_address(name):
            raise UserError(
                f"Host: {host[:100]!r} is not a name of this server",
                code="forbidden",
                field="Host",
                hint="set server.public_url to the URL by which people reach it",
            )

    def check_page(self, headers: Mapping[str, str], *, is_change: bool, scheme: str) -> None:
        """Raise `forbidden` unless a request with a cookie comes from a page of this server."""
        self.check_host(headers)
        origin = headers.get("origin")
        site = headers.get("sec-fetch-site", "same-origin")
        own = (_origin(f"{scheme}://{headers.get('host', '')}"), self._public_origin)
        is_ours = origin is None or (_origin(origin) is not None and _origin(origin) in own)
        if not is_ours or site not in ("same-origin", "none"):
            raise UserError(
                "the request was caused by another site",
                code="forbidden",
                field="Origin",
                hint="a proxy in front must be named by server.public_url",
            )
        if is_change and (origin is None or headers.get(CHANGE_HEADER.lower()) is None):
            raise UserError(
                f"a change with a cookie needs the headers Origin and {CHANGE_HEADER}",
                code="forbidden",
                field=CHANGE_HEADER,
                hint="scripts send a token: `Authorization: Bearer TOKEN`",
            )

    def _value(self, headers: Mapping[str, str]) -> str | None:
        for part in headers.get("cookie", "").split(";"):
            name, _, value = part.strip().partition("=")
            if name == self.cookie_name and value.count(".") == 3:
                return value
        return None

    def _sign(self, body: str) -> str:
        return hmac.new(self._key, body.encode("utf-8", "surrogatepass"), "sha256").hexdigest()

    def _set_cookie(self, value: str, age_s: int) -> str:
        secure = "; Secure" if self._is_secure else ""
        path = self.base_path or "/"
        return (
            f"{self.cookie_name}={value}; Path={path}; Max-Age={age_s}; HttpOnly; "
            f"SameSite=Strict{secure}"
        )


def _signed_out() -> UserError:
    return UserError(
        "the session has ended", code="unauthorised", hint="run `tercio web` to sign in again"
    )


def _names_of(server: ServerConfig) -> frozenset[str]:
    """Return the host names that are this server's; addresses are always allowed.

    A page of another name that was made to point here sends that name, never an address.
    """
    names = {"localhost", server.host.lower(), socket.gethostname().lower()}
    if server.public_url:
        names.add(urlsplit(server.public_url).hostname or "")
    return frozenset(name for name in names if name)


def _host_name(host: str) -> str:
    """Return the name in a Host header, without its port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _origin(url: str) -> tuple[str, str, int | None] | None:
    """Return scheme, host and port of a URL, or None for one that has none."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if not parts.scheme or not parts.hostname:
        return None
    return parts.scheme, parts.hostname, port or _PORT_BY_SCHEME.get(parts.scheme)
