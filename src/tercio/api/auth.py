"""Who asks: bearer tokens, and this machine's admin token.

A token is a random secret; only its SHA-256 is kept, in the journal. The admin token of the
state directory is generated at the first start, is readable by its owner only, and never
enters the journal.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import pwd
import secrets
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tercio.errors import UserError
from tercio.model.identity import Principal, Role, Token

_SECRET_BYTES: Final = 32
_REMEMBERED: Final = 4096


def new_secret() -> str:
    """Return a fresh secret, long enough that it cannot be guessed."""
    return "tercio_" + secrets.token_urlsafe(_SECRET_BYTES)


def new_token_id() -> str:
    """Return a fresh public name for a token."""
    return "tok-" + secrets.token_hex(5)


def digest(secret: str) -> str:
    """Return the hex digest that stands for a secret."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def admin_token(path: Path) -> str:
    """Return the secret in the admin token file; create the file when it is not there.

    Raises:
        UserError: `forbidden` when others may read the file.
    """
    try:
        found = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        found = ""
    if found:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise UserError(
                f"{path} can be read by others",
                code="forbidden",
                hint=f"run `chmod 600 {path}`, or delete it to get a new token",
            )
        return found
    secret = new_secret()
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(secret + "\n")
    fresh.replace(path)
    return secret


def server_user() -> str:
    """Return the name of the system user that the server runs as; the admin token is theirs."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"uid-{os.geteuid()}"


class Authenticator:
    """Turns the `Authorization` header into a principal.

    Args:
        admin_secret: secret of the admin token.
        tokens: returns the tokens in force, by id.
        now: seconds since the epoch.
        admin_user: whom the admin token stands for.
    """

    def __init__(
        self,
        *,
        admin_secret: str,
        tokens: Callable[[], Mapping[str, Token]],
        now: Callable[[], float],
        admin_user: str | None = None,
    ) -> None:
        self._admin_sha256 = digest(admin_secret)
        self._admin = Principal(user=admin_user or server_user(), role=Role.ADMIN)
        self._tokens = tokens
        self._now = now
        # Where a digest was found last. Checked against the tokens in force at every use, so
        # that a revoked token stops working at once.
        self._token_id_by_sha256: dict[str, str] = {}

    def principal(self, header: str | None) -> Principal:
        """Return whom the header's token stands for.

        Raises:
            UserError: `unauthorised` without a token, or with one that is not in force.
        """
        return self.owner(self.token_id(header))

    def owner(self, token_id: str) -> Principal:
        """Return whom a token stands for; the empty id is that of the admin token.

        Raises:
            UserError: `unauthorised` when it is not in force.
        """
        if not token_id:
            return self._admin
        token = self._tokens().get(token_id)
        if token is None:
            raise _unauthorised("the token is not known, or was revoked")
        if token.expires_s is not None and self._now() >= token.expires_s:
            raise _unauthorised("the token has expired")
        return token.principal

    def token_id(self, header: str | None) -> str:
        """Return the id of the header's token; empty for the admin token.

        Raises:
            UserError: `unauthorised` without a token, or with one that is not known.
        """
        if header is None:
            raise _unauthorised("no token was sent")
        scheme, _, secret = header.partition(" ")
        secret = secret.strip()
        if scheme.lower() != "bearer" or not secret:
            raise _unauthorised("the Authorization header is not `Bearer TOKEN`")
        sha256 = digest(secret)
        if hmac.compare_digest(sha256, self._admin_sha256):
            return ""
        token = self._find(sha256)
        if token is None:
            raise _unauthorised("the token is not known, or was revoked")
        return token.token_id

    def _find(self, sha256: str) -> Token | None:
        tokens = self._tokens()
        known = tokens.get(self._token_id_by_sha256.get(sha256, ""))
        if known is not None and hmac.compare_digest(known.sha256, sha256):
            return known
        found: Token | None = None
        for token in tokens.values():
            # Every token is compared, in constant time each: the time says nothing.
            if hmac.compare_digest(token.sha256, sha256):
                found = token
        if found is not None:
            if len(self._token_id_by_sha256) >= _REMEMBERED:
                self._token_id_by_sha256.clear()
            self._token_id_by_sha256[sha256] = found.token_id
        return found


def check_role(principal: Principal, role: Role) -> None:
    """Raise `forbidden` when the principal's role is not enough."""
    if not principal.has_role(role):
        raise UserError(
            f"this needs the role {role.value}; {principal.user}'s token has "
            f"{principal.role.value}",
            code="forbidden",
            hint="ask an admin for a token with that role: `tercio token create`",
        )


def _unauthorised(message: str) -> UserError:
    return UserError(
        message,
        code="unauthorised",
        hint="set TERCIO_TOKEN or --token-file; an admin makes tokens with `tercio token create`",
    )
