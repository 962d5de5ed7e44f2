"""Every route with every role, and what strangers see of each other."""

import pytest
from live_server import ROLES, LiveServer, job

from tercio.api.app import all_routes
from tercio.errors import UserError
from tercio.model.events import TaskStarted

ALL_ROUTES = all_routes()
RANK = {role: rank for rank, role in enumerate(ROLES)}


def target(route):
    path = route.path.replace("{queue+}", "none")
    for name in route.variables:
        path = path.replace(f"{{{name}}}", "none")
    return path


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with LiveServer(tmp_path_factory.mktemp("state")) as live:
        yield live


@pytest.fixture(scope="module")
def tokens(shared):
    return {role: shared.token(role) for role in ROLES}


def ask(live, route, token):
    body = b"{}" if route.method in ("POST", "PUT") else None
    return live.request(route.method, target(route), token=token, body=body)


@pytest.mark.parametrize("route", ALL_ROUTES, ids=lambda route: route.name)
def test_every_route_asks_for_its_role(route, shared, tokens):
    bare = ask(shared, route, None)
    wrong = ask(shared, route, "nobody's")
    if route.name == "sign_in":
        assert bare.status == wrong.status == 403  # no page of ours sent it: test_sessions.py
        return
    if route.role is None:
        assert bare.status == wrong.status == 200
        return
    for reply in (bare, wrong):
        assert reply.status == 401
        assert reply.body["code"] == "unauthorised"
        assert reply.headers["www-authenticate"].startswith("Bearer")
    for role in ROLES:
        reply = ask(shared, route, tokens[role])
        if RANK[role] < RANK[route.role.value]:
            assert (reply.status, reply.body["code"]) == (403, "forbidden")
        else:
            assert reply.status not in (401, 403, 405, 500), reply.content


def test_only_health_and_the_document_need_no_token():
    bare = [route.name for route in ALL_ROUTES if route.role is None]
    assert bare == ["health", "sign_in", "schema"]


def test_names_of_routes_are_unique():
    names = [route.name for route in ALL_ROUTES]
    assert len(set(names)) == len(names)


def test_a_revoked_token_is_refused_at_once(server, client):
    view = client.create_token("bob")
    assert server.request("GET", "/v1/jobs", token=view.secret).status == 200
    client.revoke_token(view.token_id)
    assert server.request("GET", "/v1/jobs", token=view.secret).status == 401


def test_a_secret_is_shown_once_and_kept_nowhere(server, client):
    secret = client.create_token("bob", groups=("nlp",)).secret
    (listed,) = client.tokens().rows
    assert (listed.user, listed.groups, listed.secret) == ("bob", ("nlp",), None)
    client.close()
    for path in server.config.state_path.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes()
    events = server.request("GET", "/v1/events", token=server.admin_secret).content
    assert b"TokenCreated" in events
    assert secret.encode() not in events


def test_an_expired_token_cannot_be_made(client):
    with pytest.raises(UserError, match="in the past"):
        client.create_token("bob", expires_s=1.0)


def test_the_jobs_of_another_tenant_are_not_there(connect):
    ana = connect("user", user="ana", tenant="red")
    eve = connect("user", user="eve", tenant="blue")
    (name,) = ana.submit(job()).ids
    assert [row.id for row in ana.jobs().rows] == [name]
    assert eve.jobs(is_all=True).rows == ()
    for ask in (eve.job, eve.decision, eve.story, eve.cancel, eve.hold):
        with pytest.raises(UserError) as caught:
            ask(name)
        assert caught.value.code == "not_found"
    with pytest.raises(UserError) as caught:
        list(eve.logs(name))
    assert caught.value.code == "not_found"
    with pytest.raises(UserError) as caught:
        eve.execute(name, ["sh"])
    assert caught.value.code == "not_found"


def test_a_colleague_sees_a_job_without_its_environment(connect):
    ana = connect("user", user="ana", tenant="red")
    bob = connect("viewer", user="bob", tenant="red")
    (name,) = ana.submit(job(env={"KEY": "hush"})).ids
    assert ana.job(name).spec.env == {"KEY": "hush"}
    assert bob.job(name).spec.env == {"KEY": "(hidden)"}
    assert connect("operator", user="op", tenant="ops").job(name).spec.env == {"KEY": "hush"}


def test_a_colleague_may_not_stop_the_job(connect):
    ana = connect("user", user="ana", tenant="red")
    bob = connect("user", user="bob", tenant="red")
    (name,) = ana.submit(job()).ids
    with pytest.raises(UserError) as caught:
        bob.cancel(name)
    assert caught.value.code == "forbidden"


def test_events_of_other_tenants_carry_no_details(connect, server):
    ana = connect("user", user="ana-x", tenant="red")
    eve = connect("viewer", user="eve", tenant="blue")
    (name,) = ana.submit(job("secret-name", env={"KEY": "hush"})).ids
    ana.cancel(name, reason="secret-reason")
    page = server.request("GET", "/v1/events?limit=1000", token=eve.address.token)
    assert name.encode() in page.content
    for word in (b"secret-name", b"secret-reason", b"hush", b"ana-x"):
        assert word not in page.content
    full = server.request("GET", "/v1/events?limit=1000", token=server.admin_secret)
    assert b"secret-name" in full.content


def test_usage_names_users_of_the_own_tenant_only(connect, server):
    ana = connect("user", user="ana", tenant="red")
    eve = connect("user", user="eve", tenant="blue")
    for owner in (ana, eve):
        (name,) = owner.submit(job()).ids
        server.wait_for(TaskStarted, name)
    assert [row.key for row in connect().usage().rows] == ["ana", "eve"]
    assert [row.key for row in eve.usage().rows] == ["eve"]
