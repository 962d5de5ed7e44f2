"""Talks to slurmrestd: with a JWT over TCP, or as the caller over a socket.

The newest data version that the daemon speaks is found by asking, once. A token is taken from
the file, which may be renewed by others, or from `scontrol token`.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import socket
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from tercio.engines.slurm.commands import Commands, ask
from tercio.errors import EngineError

_TIMEOUT_S: Final = 30.0
_VERSIONS: Final = tuple(f"v0.0.{number}" for number in range(44, 37, -1))
_TOKEN_LIFE_S: Final = 3600
_TOKEN_EARLY_S: Final = 300.0
_UNAUTHORISED: Final = (401, 403, 500)


class Rest:
    """One slurmrestd.

    Attributes:
        version: of the data, such as `v0.0.42`; empty before the first answer.
    """

    def __init__(
        self,
        *,
        url: str,
        user: str,
        token_file: str,
        commands: Commands,
        clock: Callable[[], float],
    ) -> None:
        self._url = url
        self._user = user
        self._token_file = token_file
        self._commands = commands
        self._clock = clock
        self._token = self._sent = ""
        self._token_until_s = 0.0
        self.version = ""

    async def get(self, what: str) -> dict[str, Any]:
        """Return the answer that lists `jobs` or `nodes`. Raises EngineError, retryable."""
        path = await self._path(what)
        status, body = await self._ask_twice(path, None)
        if status != 200 or body.get("errors"):
            raise self._error(f"{path} answered {status}: {first_error(body)}")
        if not isinstance(body.get(what), list):
            # Else every job would have left, and every node.
            raise self._error(f"{path} answered without {what}")
        return body

    async def post(self, what: str, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return status and answer of a request. Raises EngineError, retryable.

        It may have been carried out although this raises.
        """
        return await self._ask_twice(await self._path(what), json.dumps(body).encode())

    async def find_version(self) -> str:
        """Return the data version. Raises EngineError, retryable."""
        if not self.version:
            self.version = await self._find_version()
        return self.version

    async def _path(self, what: str) -> str:
        return f"/slurm/{await self.find_version()}/{what}"

    async def _ask_twice(self, path: str, body: bytes | None) -> tuple[int, dict[str, Any]]:
        status, answer = await self._ask(path, body)
        if status in _UNAUTHORISED and (body is None or status != 500):
            # A token may have been revoked or have run out by another clock than ours.
            self._token_until_s = 0.0
            status, answer = await self._ask(path, body)
        if status in _UNAUTHORISED and (body is None or status != 500):
            raise self._refused(path, status, answer)
        return status, answer

    async def _find_version(self) -> str:
        for version in _VERSIONS:
            path = f"/slurm/{version}/ping"
            status, body = await self._ask(path, None)
            if status == 200:
                return version
            if status in _UNAUTHORISED:
                raise self._refused(path, status, body)
        raise self._error(f"speaks none of {_VERSIONS[-1]} to {_VERSIONS[0]}")

    async def _ask(self, path: str, body: bytes | None) -> tuple[int, dict[str, Any]]:
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self._url.startswith("http"):
            token = await self._fresh_token()
            self._sent = token
            headers |= {"X-SLURM-USER-NAME": self._user, "X-SLURM-USER-TOKEN": token}
        try:
            return await asyncio.to_thread(_request, self._url, path, headers, body)
        except (OSError, http.client.HTTPException, ValueError) as failure:
            raise self._error(f"{path}: {str(failure) or type(failure).__name__}") from failure

    async def _fresh_token(self) -> str:
        if self._token_file:
            # Whoever made it renews it; a file is cheap to read again.
            try:
                text = await asyncio.to_thread(Path(self._token_file).read_text, "utf-8")
            except OSError as failure:
                raise self._error(f"{self._token_file}: {failure.strerror}") from failure
            return text.strip().removeprefix("SLURM_JWT=")
        if self._clock() > self._token_until_s - _TOKEN_EARLY_S:
            text = await ask(self._commands, "scontrol", "token", f"lifespan={_TOKEN_LIFE_S}")
            self._token = text.strip().removeprefix("SLURM_JWT=")
            self._token_until_s = self._clock() + _TOKEN_LIFE_S
        return self._token

    def _refused(self, path: str, status: int, body: dict[str, Any]) -> EngineError:
        """Return the error of an answer that, often, means the token; it says where that is."""
        told = f"{path} answered {status}: {first_error(body)}"
        end_s = _expiry_of(self._sent)
        if end_s is None or end_s > self._clock():
            return self._error(told)
        at = datetime.fromtimestamp(end_s, UTC).isoformat(timespec="seconds")
        whose = f"the token in {self._token_file}" if self._token_file else "its own token"
        return self._error(
            f"refused {whose}, which ran out at {at}: renew it by 'scontrol token' ({told})"
        )

    def _error(self, message: str) -> EngineError:
        return EngineError(message, engine="slurm", operation="slurmrestd", retryable=True)


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a socket of this machine."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_TIMEOUT_S)
        self.sock.connect(self._path)


def _request(
    url: str, path: str, headers: dict[str, str], body: bytes | None
) -> tuple[int, dict[str, Any]]:
    parts = urlsplit(url)
    connection: http.client.HTTPConnection
    if parts.scheme == "unix":
        connection = _UnixConnection(parts.path)
    elif parts.scheme == "https":
        connection = http.client.HTTPSConnection(parts.netloc, timeout=_TIMEOUT_S)
    else:
        connection = http.client.HTTPConnection(parts.netloc, timeout=_TIMEOUT_S)
    below = "" if parts.scheme == "unix" else parts.path.rstrip("/")
    try:
        method = "GET" if body is None else "POST"
        connection.request(method, below + path, body=body, headers=headers)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            return answer.status, _loose(text)
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError("the answer is no object")
        return answer.status, found
    finally:
        connection.close()


def _loose(text: bytes) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except ValueError:
        return {"errors": [{"error": text[:200].decode(errors="replace")}]}
    return body if isinstance(body, dict) else {}


def _expiry_of(token: str) -> float | None:
    """Return when a JWT runs out by its own words, in epoch seconds; None where it says nothing."""
    try:
        part = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        return float(claims["exp"])
    except (IndexError, KeyError, TypeError, ValueError):
        return None


def first_error(body: Mapping[str, Any]) -> str:
    """Return what an answer gives as its reason."""
    for error in body.get("errors") or ():
        # The description names the step that failed, the error why.
        return str(error.get("error") or error.get("description") or error)
    return "no reason given"
