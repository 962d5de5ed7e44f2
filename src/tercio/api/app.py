"""The application: the table of routes as Litestar route handlers.

Litestar routes, limits bodies, streams and turns exceptions into answers; decoding, encoding and
the OpenAPI document are msgspec's, from the same structs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec
from litestar import Litestar, Response
from litestar.handlers import HTTPRouteHandler
from litestar.response import Stream as StreamResponse
from litestar.types import ASGIApp, Receive, Scope, Send

from tercio.api.auth import check_role
from tercio.api.context import ApiContext
from tercio.api.openapi import openapi_document
from tercio.api.problem import problem_response
from tercio.api.routes import ROUTES
from tercio.api.table import JSON, Answer, Call, Done, HttpRequest, Raw, Route, Stream, make_call
from tercio.model.identity import Principal

_encode: Final = msgspec.json.Encoder().encode
_NO_STORE: Final = {"Cache-Control": "no-store"}
_VARIABLE: Final = re.compile(r"\{([^}]+)\}")


class _OpenApi:
    """The OpenAPI document, made at the first request and kept. `routes` includes its own."""

    def __init__(self) -> None:
        self.routes: tuple[Route, ...] = ()
        self._content: bytes | None = None

    async def perform(self, _: Call[Any, Any]) -> Raw:
        """Return the OpenAPI 3.1 document."""
        if self._content is None:
            self._content = _encode(openapi_document(self.routes))
        return Raw(content=self._content, media_type=JSON)


def all_routes() -> tuple[Route, ...]:
    """Return every route, the one of the OpenAPI document included."""
    document = _OpenApi()
    own = Route(
        method="GET",
        path="/schema",
        name="schema",
        summary="This document",
        role=None,
        perform=document.perform,
    )
    document.routes = (*ROUTES, own)
    return document.routes


def create_app(context: ApiContext, pages: Sequence[HTTPRouteHandler] = ()) -> Litestar:
    """Build the application around a running controller; `pages` are those of the web page."""
    return Litestar(
        route_handlers=[*(_mounted(route, context) for route in all_routes()), *pages],
        openapi_config=None,
        exception_handlers={Exception: problem_response},
        request_max_body_size=context.config.server.body_bytes_max,
        on_shutdown=[
            context.execs.close_all,
            context.children.close,
            context.twin_runs.close,
            context.policy_shadow.close,
        ],
        logging_config=None,
    )


def below(app: ASGIApp, base_path: str) -> ASGIApp:
    """Return the application as it is reached through a proxy that keeps its own path prefix."""
    if not base_path:
        return app
    prefix = base_path + "/"

    async def shortened(scope: Scope, receive: Receive, send: Send) -> None:
        if str(scope.get("path", "")).startswith(prefix):
            path = str(scope["path"]).removeprefix(base_path)
            scope = cast("Scope", {**scope, "path": path, "raw_path": path.encode()})
        await app(scope, receive, send)

    return shortened


def _mounted(route: Route, context: ApiContext) -> HTTPRouteHandler:
    async def perform(request: HttpRequest) -> Response[Any]:
        principal = None
        if route.role is not None:
            principal = _principal(context, request)
            check_role(principal, route.role)
        call = await make_call(route, context, principal, request)
        return _response(await route.perform(call))

    limits = context.config.store if route.is_workdir else None
    return HTTPRouteHandler(
        _VARIABLE.sub(_litestar_variable, route.path),
        http_method=route.method,
        name=route.name,
        status_code=200,
        request_max_body_size=(
            limits.workdir_bytes_max if limits else context.config.server.body_bytes_max
        ),
    )(perform)


def _principal(context: ApiContext, request: HttpRequest) -> Principal:
    """Return who asks: by a token, else by a browser's cookie."""
    header = request.headers.get("authorization")
    if header is None:
        owner = context.sessions.principal(
            request.headers, method=request.method, scheme=request.url.scheme
        )
        if owner is not None:
            return owner
    return context.auth.principal(header)


def _litestar_variable(found: re.Match[str]) -> str:
    name = found.group(1)
    return f"{{{name[:-1]}:path}}" if name.endswith("+") else f"{{{name}:str}}"


def _response(answer: Answer) -> Response[Any]:
    match answer:
        case Raw(content=content, media_type=media_type, headers=headers):
            return Response(content, media_type=media_type, headers=headers)
        case Stream(chunks=chunks, media_type=media_type, headers=headers):
            return StreamResponse(chunks, media_type=media_type, headers={**_NO_STORE, **headers})
        case Done():
            return Response(None, status_code=204, headers=_NO_STORE)
        case _:
            return Response(_encode(answer), media_type=JSON, headers=_NO_STORE)
