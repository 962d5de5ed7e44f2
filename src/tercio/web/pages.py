"""Serves the built page: one document for every view, and its hashed files.

The bundle is `static/`, made by `npm run build` in `ui/`; wheel and sdist carry it. A running
server serves a new one as soon as it is whole: whoever asks for the document next gets it. A view
is made in the browser, from the path, so every path of a view is the same document.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import html
import mimetypes
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from litestar import Response
from litestar.exceptions import NotFoundException
from litestar.handlers import HTTPRouteHandler

from tercio.api.context import ApiContext
from tercio.api.table import HttpRequest
from tercio.web import STATIC, is_built

VIEWS: Final = (
    "jobs",
    "plan",
    "queues",
    "nodes",
    "topology",
    "reservations",
    "twin",
    "sizing",
    "usage",
    "events",
    "settings",
    "signin",
)
"""First parts of the paths of views. `ui/src/views.ts` has the same."""

POLICY: Final = (
    "default-src 'self'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'; "
    "object-src 'none'; img-src 'self' data:"
)
SECURITY: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
ABSENT: Final = """The web page is not part of this installation.

It is in every released wheel and sdist. In a checkout, `make ui` builds it (Node.js comes with
that), and a server that runs from the checkout serves it from then on. `pip install .` builds it
where npm is on PATH. Everything else works without: see `tercio --help`, and the HTTP API at
/schema.
"""
_Signs = tuple[tuple[str, int, int], ...]
"""Name, time of change in nanoseconds and size of every file of a bundle."""
_NAMED: Final = re.compile(rb"""["'`]\./(?:assets/)?([\w.-]+\.(?:js|css|svg))["'`]""")
"""A file of the bundle, as the document and the scripts name it."""
_BASE: Final = re.compile(rb'<base href="/"\s*/?>')


class File(msgspec.Struct, frozen=True, kw_only=True):
    """One file of the bundle, as it is sent."""

    content: bytes
    packed: bytes
    media_type: str
    tag: str

    @classmethod
    def of(cls, name: str, content: bytes) -> File:
        """Return a file as it is sent, by its name."""
        return cls(
            content=content,
            packed=gzip.compress(content, 9, mtime=0),
            media_type=mimetypes.guess_type(name)[0] or "application/octet-stream",
            tag=f'"{hashlib.sha256(content).hexdigest()[:16]}"',
        )


class Bundle:
    """The files of the page; read again when what was built is another.

    Files of earlier builds are kept: a page that is open may still ask for a part of its own.
    """

    def __init__(self, static: Path, base_path: str) -> None:
        self._static = static
        self._base_path = base_path
        self._signs: _Signs = ()
        self._files: dict[str, File] = {}
        self._lock = threading.Lock()

    def document(self) -> File | None:
        """Return the document of the newest whole build, None where there is none. Blocks."""
        with self._lock:
            signs = _signs(self._static)
            if signs != self._signs and is_built(self._static):
                files = _read(self._static, self._base_path)
                # A build writes the document and its files in any order, and may still do so.
                if _is_whole(files) and _signs(self._static) == signs:
                    self._files, self._signs = {**self._files, **files}, signs
            return self._files.get("index.html")

    def asset(self, name: str) -> File | None:
        """Return a file of this or an earlier build. Blocks where it has to look."""
        name = f"assets/{name}"
        if name not in self._files:
            self.document()
        return self._files.get(name)


def _signs(static: Path) -> _Signs:
    try:
        return tuple(
            (path.as_posix(), stat.st_mtime_ns, stat.st_size)
            for path in sorted(static.rglob("*"))
            for stat in (path.stat(),)
        )
    except FileNotFoundError:
        return ()  # in the middle of a build


def _is_whole(files: Mapping[str, File]) -> bool:
    """Whether all that the document and its scripts name is there, and something is in it."""
    texts = [file.content for name, file in files.items() if name.endswith((".html", ".js"))]
    names = [part.decode() for text in texts for part in _NAMED.findall(text)]
    has_all = all(f"assets/{name}" in files for name in names)
    return has_all and all(file.content for file in files.values())


def page_routes(context: ApiContext, static: Path = STATIC) -> list[HTTPRouteHandler]:
    """Return the routes of the page's paths; without a bundle they say how to get one."""
    bundle = Bundle(static, context.sessions.base_path)
    bundle.document()

    async def document(request: HttpRequest) -> Response[Any]:
        context.sessions.check_host(request.headers)
        found = await asyncio.to_thread(bundle.document)
        if found is None:
            return Response(ABSENT, status_code=404, media_type="text/plain", headers=SECURITY)
        return _answer(found, request, caching="no-cache")

    async def view(request: HttpRequest) -> Response[Any]:
        first = str(request.path_params["view"]).strip("/").partition("/")[0]
        if first not in VIEWS:
            raise NotFoundException
        return await document(request)

    async def asset(request: HttpRequest) -> Response[Any]:
        name = str(request.path_params["name"]).strip("/")
        found = await asyncio.to_thread(bundle.asset, name)
        if found is None:
            raise NotFoundException
        return _answer(found, request, caching="public, max-age=31536000, immutable")

    return [
        HTTPRouteHandler(path, http_method="GET", name=name, status_code=200)(perform)
        for path, name, perform in (
            ("/", "page", document),
            ("/assets/{name:path}", "page_asset", asset),
            ("/{view:path}", "page_view", view),
        )
    ]


def _read(static: Path, base_path: str) -> dict[str, File]:
    if not is_built(static):
        return {}
    found = {
        path.relative_to(static).as_posix(): path.read_bytes()
        for path in sorted(static.rglob("*"))
        if path.is_file()
    }
    if base_path:
        # Links in the document are relative to this, so that it works below a proxy's path.
        base = f'<base href="{html.escape(base_path)}/">'.encode()
        found["index.html"] = _BASE.sub(lambda _: base, found["index.html"])
    return {name: File.of(name, content) for name, content in found.items()}


def _answer(file: File, request: HttpRequest, *, caching: str) -> Response[Any]:
    headers = {**SECURITY, "Cache-Control": caching, "ETag": file.tag, "Vary": "Accept-Encoding"}
    if request.headers.get("if-none-match") == file.tag:
        return Response(None, status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return Response(file.packed, media_type=file.media_type, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)
