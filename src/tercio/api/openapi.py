"""The OpenAPI 3.1 document, made from the table of routes and the structs it names.

The schemas are msgspec's own, of the very types that decode requests and encode answers, so
that the document cannot differ from what the server does.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

import tercio
from tercio.api import problem
from tercio.api.bodies import NoBody
from tercio.api.table import Route
from tercio.model.views import Problem

_REF: Final = "#/components/schemas/{name}"
_NO_BODY_NAMES: Final = ("NoBody", "NoQuery")
Json = dict[str, Any]


def openapi_document(routes: tuple[Route, ...]) -> Json:
    """Return the document as a JSON object."""
    schemas = _Schemas(routes)
    paths: Json = {}
    for route in routes:
        path = paths.setdefault(route.path.replace("+}", "}"), {})
        path[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tercio",
            "version": tercio.__version__,
            "description": (
                "One control plane for GPU clusters. Times are seconds since the epoch, "
                "durations seconds. Lists are paged by `limit` and `after`; `next` is the "
                "cursor of the following page. Errors are RFC 9457 problems with a stable "
                "`code`."
            ),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {
                "Problem": {
                    "description": "What went wrong, and what to do about it",
                    "content": {problem.MEDIA_TYPE: {"schema": schemas.of(Problem)}},
                }
            },
        },
        "security": [{"token": []}],
    }


class _Schemas:
    """Schemas of all structs that the routes name, by reference."""

    def __init__(self, routes: tuple[Route, ...]) -> None:
        found: dict[type[msgspec.Struct], None] = {Problem: None}
        for route in routes:
            for kind in (route.query, route.body, route.answer):
                if kind is not None:
                    found[kind] = None
        kinds = list(found)
        schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
        self._by_kind = dict(zip(kinds, schemas, strict=True))
        self.components: Json = {
            name: schema for name, schema in components.items() if name not in _NO_BODY_NAMES
        }
        self._queries: Json = {}
        for route in routes:
            name = route.query.__name__
            self._queries[name] = components[name]
            if name.endswith("Query"):
                self.components.pop(name, None)

    def of(self, kind: type[msgspec.Struct]) -> Json:
        """Return the reference to a struct's schema."""
        return self._by_kind[kind]

    def query(self, kind: type[msgspec.Struct]) -> Json:
        """Return the properties of a query struct, each the schema of one parameter."""
        properties: Json = self._queries[kind.__name__].get("properties", {})
        return properties


def _operation(route: Route, schemas: _Schemas) -> Json:
    operation: Json = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [_tag(route)],
        "parameters": _parameters(route, schemas),
        "responses": _responses(route, schemas),
    }
    description = (route.perform.__doc__ or "").strip()
    role = "No token is needed." if route.role is None else f"Needs the role {route.role.value}."
    operation["description"] = f"{description} {role}".strip()
    if route.role is None:
        operation["security"] = []
    if route.upload is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {route.upload: {"schema": {"type": "string", "format": "binary"}}},
        }
    elif route.method in ("POST", "PUT") and route.body is not NoBody:
        required = bool(schemas.components[route.body.__name__].get("required"))
        operation["requestBody"] = {
            "required": required,
            "content": {"application/json": {"schema": schemas.of(route.body)}},
        }
    return operation


def _tag(route: Route) -> str:
    parts = route.path.strip("/").split("/")
    return parts[1] if parts[0] == "v1" else "server"


def _parameters(route: Route, schemas: _Schemas) -> list[Json]:
    found: list[Json] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in route.variables
    ]
    for name, schema in schemas.query(route.query).items():
        found.append({"name": name, "in": "query", "required": False, "schema": schema})
    for name, meaning in route.headers.items():
        found.append(
            {
                "name": name,
                "in": "header",
                "required": False,
                "description": meaning,
                "schema": {"type": "string"},
            }
        )
    return found


def _responses(route: Route, schemas: _Schemas) -> Json:
    refused = {"$ref": "#/components/responses/Problem"}
    has_body = route.answer is not None or route.media_types != ("application/json",)
    if not has_body:
        done: Json = {"204": {"description": "Done"}}
        return {**done, "default": refused}
    content: Json = {}
    for media_type in route.media_types:
        schema: Json = {"type": "string"}
        if media_type == "application/octet-stream":
            schema = {"type": "string", "format": "binary"}
        elif route.answer is not None and media_type == "application/json":
            schema = schemas.of(route.answer)
        content[media_type] = {"schema": schema}
    return {"200": {"description": route.summary, "content": content}, "default": refused}
