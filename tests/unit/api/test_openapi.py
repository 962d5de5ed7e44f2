"""The OpenAPI document: whole, valid, and true to what the server sends."""

import json
import re
from pathlib import Path

import jsonschema
import msgspec
import pytest
from live_server import job

from tercio.api.app import all_routes
from tercio.api.openapi import openapi_document
from tercio.api.problem import STATUS_BY_CODE
from tercio.model.events import TaskStarted

DOCUMENT = json.loads(msgspec.json.encode(openapi_document(all_routes())))


def walk(node):
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from walk(value)
    elif isinstance(node, list):
        for value in node:
            yield from walk(value)


def test_every_route_is_in_the_document():
    described = {
        (method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods
    }
    assert described == {(r.method, r.path.replace("+}", "}")) for r in all_routes()}


def test_every_variable_of_a_path_is_described():
    for path, methods in DOCUMENT["paths"].items():
        for operation in methods.values():
            named = {p["name"] for p in operation["parameters"] if p["in"] == "path"}
            assert named == set(re.findall(r"{(\w+)}", path))


def test_every_reference_leads_somewhere():
    for node in walk(DOCUMENT):
        if "$ref" in node:
            found = DOCUMENT
            for part in node["$ref"].removeprefix("#/").split("/"):
                found = found[part]


def test_every_schema_is_a_schema():
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_every_operation_says_its_role_and_its_refusals():
    for methods in DOCUMENT["paths"].values():
        for operation in methods.values():
            assert re.search(r"Needs the role \w+|No token is needed", operation["description"])
            assert "default" in operation["responses"]
            assert operation["summary"]


def test_queries_and_bodies_have_their_bounds():
    limit = next(
        p for p in DOCUMENT["paths"]["/v1/jobs"]["get"]["parameters"] if p["name"] == "limit"
    )
    assert (limit["schema"]["minimum"], limit["schema"]["maximum"]) == (1, 1000)
    assert DOCUMENT["components"]["schemas"]["SubmitBody"]["additionalProperties"] is False


def test_the_server_serves_it_without_a_token(server):
    reply = server.request("GET", "/schema")
    assert reply.body == DOCUMENT
    assert reply.body["openapi"] == "3.1.0"


READS = [
    route
    for route in all_routes()
    if route.method == "GET"
    and route.answer
    and route.media_types[0] == "application/json"
    and "run" not in route.variables
    and route.name != "policy_shadow"
]
"""Those whose subject is there on any server; runs and shadows of the twin have their own tests."""


@pytest.mark.parametrize("route", READS, ids=lambda route: route.name)
def test_what_the_server_sends_is_what_the_document_says(route, server, client):
    (name,) = client.submit(job(env={"A": "b"})).ids
    server.wait_for(TaskStarted, name)
    client.create_token("bob")
    path = route.path
    for variable, value in {"job": name, "node": "n1", "queue+": "default"}.items():
        path = path.replace(f"{{{variable}}}", value)
    reply = server.request("GET", path, token=server.admin_secret)
    assert reply.status == 200, reply.content
    schema = {"$ref": f"#/components/schemas/{route.answer.__name__}", **DOCUMENT}
    jsonschema.validate(reply.body, schema)
    assert reply.body["schema"] == "tercio/v1"
    assert reply.body["kind"]


def test_the_page_about_the_api_names_every_route_with_its_role():
    page = (Path(__file__).parents[3] / "docs" / "api.md").read_text(encoding="utf-8")
    for route in all_routes():
        role = route.role.value if route.role else "none"
        path = route.path.replace("+}", "}")
        assert f"| `{route.method} {path}` | {role} | {route.summary} |" in page


def test_the_page_about_the_api_names_every_code_of_a_problem():
    page = (Path(__file__).parents[3] / "docs" / "api.md").read_text(encoding="utf-8")
    assert [code for code in STATUS_BY_CODE if f"`{code}`" not in page] == []
