"""The shape of a route, and of the call that a request becomes.

The whole API is one table of `Route`s (`api.routes`). The application, the OpenAPI document and
the test that walks every route with every role are made from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec
from litestar import Request

from tercio.api.bodies import NoBody, NoQuery
from tercio.api.context import ApiContext
from tercio.api.wire import decode_body, decode_query
from tercio.errors import UserError
from tercio.model.identity import Principal, Role

JSON: Final = "application/json"
# What came in a larger body is read in a thread, so that other requests go on meanwhile.
_IN_LOOP_BYTES: Final = 16 * 1024

Method = Literal["GET", "POST", "PUT", "DELETE"]
HttpRequest = Request[Any, Any, Any]
Q = TypeVar("Q", bound=msgspec.Struct)
B = TypeVar("B", bound=msgspec.Struct)
T = TypeVar("T")


class Raw(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that is not a JSON body of ours."""

    content: bytes
    media_type: str
    headers: dict[str, str] = {}


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that is sent as it is made. `on_close` runs when it ends or the reader leaves."""

    chunks: AsyncIterator[bytes]
    media_type: str
    headers: dict[str, str] = {}


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """An answer without a body."""


Answer = msgspec.Struct
"""A body of `model.views`, or `Raw`, `Stream` or `Done`."""


class Call(Generic[Q, B]):
    """One authorised request: who asks, for what, with which values.

    Attributes:
        context: the server around it.
        principal: who asks; None on routes that need no token.
        path: values of the path's variables, by name.
        query, body: decoded and checked.
    """

    __slots__ = ("_principal", "_request", "_size_bytes", "body", "context", "path", "query")

    def __init__(
        self,
        *,
        context: ApiContext,
        principal: Principal | None,
        request: HttpRequest,
        path: Mapping[str, str],
        query: Q,
        body: B,
        size_bytes: int,
    ) -> None:
        self.context = context
        self._principal = principal
        self._request = request
        self.path = path
        self.query = query
        self.body = body
        self._size_bytes = size_bytes

    @property
    def principal(self) -> Principal:
        """Who asks."""
        if self._principal is None:
            raise UserError("no token was sent", code="unauthorised")
        return self._principal

    async def read(self, parse: Callable[[], T]) -> T:
        """Return what a parser makes of the body: here when it is small, else in a thread."""
        return parse() if self._size_bytes <= _IN_LOOP_BYTES else await asyncio.to_thread(parse)

    def header(self, name: str) -> str | None:
        """Return a request header, or None."""
        return self._request.headers.get(name)

    @property
    def headers(self) -> Mapping[str, str]:
        """All request headers; their names are lower case."""
        return self._request.headers

    @property
    def scheme(self) -> str:
        """`http` or `https`, as the asker used it."""
        return str(self._request.url.scheme)

    async def upload(self) -> AsyncIterator[bytes]:
        """Yield the raw body as it arrives."""
        async for chunk in self._request.stream():
            if chunk:
                yield chunk

    async def upload_all(self) -> bytes:
        """Return the raw body."""
        return await self._request.body()


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table.

    Attributes:
        method, path: as in OpenAPI; `{queue+}` takes the rest of the path.
        name: operation id, also the method of the Python client where there is one.
        summary: one line for the document.
        role: least role, or None when no token is needed.
        perform: does it.
        query, body: what it takes.
        answer: the view it returns, or None when it returns none.
        media_types: of the answer.
        upload: media type of a raw request body, or None.
        body_bytes_max: for an upload, the setting that limits it; None for the usual limit.
        headers: request headers it reads, with their meaning.
    """

    method: Method
    path: str
    name: str
    summary: str
    role: Role | None
    perform: Callable[[Call[Any, Any]], Awaitable[Answer]]
    query: type[msgspec.Struct] = NoQuery
    body: type[msgspec.Struct] = NoBody
    answer: type[msgspec.Struct] | None = None
    media_types: tuple[str, ...] = (JSON,)
    upload: str | None = None
    is_workdir: bool = False
    headers: dict[str, str] = {}

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of the path's variables."""
        parts = self.path.split("/")
        return tuple(p.strip("{}+") for p in parts if p.startswith("{"))


async def make_call(
    route: Route, context: ApiContext, principal: Principal | None, request: HttpRequest
) -> Call[Any, Any]:
    """Decode what a request carries, as its route says.

    Raises:
        UserError: `invalid` with the field and a hint.
    """
    query: msgspec.Struct = _NO_QUERY
    if request.scope["query_string"] or route.query is not NoQuery:
        query = decode_query(_query_pairs(request), route.query)
    body: msgspec.Struct = _NO_BODY
    size_bytes = 0
    if route.upload is None and route.method in ("POST", "PUT"):
        raw = await request.body()
        size_bytes = len(raw)
        if size_bytes > _IN_LOOP_BYTES:
            body = await asyncio.to_thread(decode_body, raw, route.body)
        else:
            body = decode_body(raw, route.body)
    path = {name: str(value).strip("/") for name, value in request.path_params.items()}
    return Call(
        context=context,
        principal=principal,
        request=request,
        path=path,
        query=query,
        body=body,
        size_bytes=size_bytes,
    )


def _query_pairs(request: HttpRequest) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in pairs:
            raise UserError(f"{name}: given twice", field=name, hint="give it once")
        pairs[name] = value
    return pairs


_NO_QUERY: Final = NoQuery()
_NO_BODY: Final = NoBody()
