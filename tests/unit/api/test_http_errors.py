"""Whatever is sent, the answer is right or a problem: never a 500, never a bare page."""

import socket

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from live_server import LiveServer

from tercio.api.app import all_routes
from tercio.api.bodies import NoBody

PROBLEM = "application/problem+json"


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    with LiveServer(tmp_path_factory.mktemp("state"), body_bytes_max=64 * 1024) as server:
        yield server


def ask(live, method, path, **rest):
    return live.request(method, path, token=live.admin_secret, **rest)


def check_problem(reply, status, code):
    assert reply.headers["content-type"] == PROBLEM
    body = reply.body
    assert (reply.status, body["status"], body["code"]) == (status, status, code)
    assert body["type"] == f"urn:tercio:problem:{code}"
    assert body["title"]
    assert body["detail"]
    return body


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/job", "/v1/jobs/a/b/c", "/v2/jobs", "/%00"])
def test_an_unknown_path_is_a_problem(live, path):
    body = check_problem(ask(live, "GET", path), 404, "not_found")
    assert "/schema" in body["hint"]


def test_a_method_that_does_not_go_is_a_problem(live):
    reply = ask(live, "PATCH", "/v1/jobs")
    check_problem(reply, 405, "method_not_allowed")
    assert "POST" in reply.headers["allow"]


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/policy", "/v1/jobs/batch"])
def test_a_body_that_is_too_large_is_a_problem(live, path):
    method = "PUT" if path.endswith("policy") else "POST"
    check_problem(ask(live, method, path, body=b"x" * (64 * 1024 + 1)), 413, "too_large")


def test_a_chunked_body_that_is_too_large_is_a_problem(live):
    host, _, port = live.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as sock:
        sock.sendall(
            f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {live.admin_secret}\r\n"
            "Transfer-Encoding: chunked\r\n\r\n".encode()
        )
        sock.sendall(b"10001\r\n" + b"x" * 0x10001 + b"\r\n0\r\n\r\n")
        assert sock.recv(100).startswith(b"HTTP/1.1 413 ")


def test_a_body_that_is_no_json_is_a_problem(live):
    check_problem(ask(live, "POST", "/v1/jobs", body=b"{"), 400, "invalid")


def test_a_parameter_given_twice_is_a_problem(live):
    body = check_problem(ask(live, "GET", "/v1/jobs?limit=1&limit=2"), 400, "invalid")
    assert body["field"] == "limit"


@pytest.mark.parametrize("path", ["/v1/nodes", "/v1/queues", "/v1/tokens", "/v1/usage", "/v1/jobs"])
def test_every_list_refuses_bad_pages(live, path):
    for query in ("limit=0", "limit=1001", "after=zzz", "limit=x", "after="):
        reply = ask(live, "GET", f"{path}?{query}")
        check_problem(reply, 400, "invalid")


def test_a_policy_edit_says_what_it_started_from(live):
    body = check_problem(ask(live, "PUT", "/v1/policy", body={"file": "{}"}), 400, "invalid")
    assert body["field"] == "If-Match"
    headers = {"If-Match": "77"}
    reply = ask(live, "PUT", "/v1/policy", body={"file": "{}"}, headers=headers)
    check_problem(reply, 409, "conflict")


NAMES = st.sampled_from(
    [
        "file",
        "job",
        "jobs",
        "overrides",
        "secrets",
        "hold",
        "argv",
        "task",
        "reason",
        "rows",
        "user",
        "role",
        "name",
        "run",
        "tasks",
        "per_task",
        "devices",
        "env",
        "array",
        "groups",
        "time",
        "retry",
        "topology",
        "depends_on",
        "notify",
        "labels",
        "queues",
        "x",
    ]
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["run: x", "H100:2", "0-9%2", "8h", "{}", "[", "a: &a [*a]", "\0", "-1"])
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
BODIES = (
    st.binary(max_size=64)
    | TREES
    | st.fixed_dictionaries({"job": st.dictionaries(NAMES, TREES, max_size=5)})
    | st.fixed_dictionaries({"file": st.text(max_size=80)})
    | st.fixed_dictionaries(
        {"job": st.just({"run": "x"}), "overrides": st.dictionaries(NAMES, TREES, max_size=3)}
    )
)
WRITES = [r for r in all_routes() if r.body is not NoBody and r.upload is None]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@pytest.mark.parametrize("route", WRITES, ids=lambda route: route.name)
@given(body=BODIES)
def test_no_body_makes_a_500(route, live, body):
    path = route.path
    for name in route.variables:
        path = path.replace(f"{{{name}}}", "n1" if name == "node" else "job-00001")
    reply = ask(live, route.method, path, body=body, headers={"If-Match": "0"})
    assert reply.status < 500, (body, reply.content)
    assert reply.status < 300 or reply.headers["content-type"] == PROBLEM


READS = [r for r in all_routes() if r.method == "GET" and "octet" not in r.media_types[0]]


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@pytest.mark.parametrize("route", READS, ids=lambda route: route.name)
@given(
    value=st.text(st.characters(max_codepoint=0x2FF, exclude_characters="\r\n"), max_size=20),
    query=st.dictionaries(
        st.sampled_from(["limit", "after", "state", "all", "since", "by", "task", "tail", "x"]),
        st.sampled_from(["", "0", "1", "-1", "9" * 30, "true", "x", "1e9", "nan", "é", "\0"]),
        max_size=3,
    ),
)
def test_no_question_makes_a_500(route, live, value, query):
    from urllib.parse import quote, urlencode

    path = route.path
    for name in route.variables:
        path = path.replace(f"{{{name}}}", quote(value or "x", safe="")).replace(
            f"{{{name}+}}", quote(value or "x")
        )
    if route.name == "logs":
        query.pop("follow", None)
    reply = ask(live, "GET", f"{path}?{urlencode(query)}")
    assert reply.status < 500, reply.content
