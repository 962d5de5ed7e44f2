"""Signing in with a browser, and what a foreign page could make a browser do."""

import json
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request

import pytest
from live_server import LiveServer

from tercio.client import Client

CHANGE = {"Tercio-Request": "page"}


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    with LiveServer(tmp_path_factory.mktemp("state")) as running:
        yield running


def code_of(live, token=None):
    reply = live.request("POST", "/v1/session/codes", token=token or live.admin_secret)
    assert reply.status == 200, reply.content
    return reply.body["code"]


def page(live, **more):
    return {"Origin": live.url, **CHANGE, **more}


def sign_in(live, token=None):
    body = {"code": code_of(live, token)}
    reply = live.request("POST", "/v1/session", body=body, headers=page(live))
    assert reply.status == 200, reply.content
    return reply.headers["set-cookie"].partition(";")[0]


def test_a_code_is_exchanged_for_a_cookie_that_scripts_cannot_read(live):
    reply = live.request("POST", "/v1/session", body={"code": code_of(live)}, headers=page(live))
    attributes = reply.headers["set-cookie"].split("; ")[1:]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(attributes)
    assert reply.body["role"] == "admin"
    cookie = reply.headers["set-cookie"].partition(";")[0]
    seen = live.request("GET", "/v1/session", headers={"Cookie": cookie})
    assert seen.body == reply.body


def test_a_code_works_once(live):
    code = code_of(live)
    assert (
        live.request("POST", "/v1/session", body={"code": code}, headers=page(live)).status == 200
    )
    again = live.request("POST", "/v1/session", body={"code": code}, headers=page(live))
    assert (again.status, again.body["code"]) == (401, "unauthorised")
    assert "set-cookie" not in again.headers


def test_a_token_signs_in_with_its_own_role(live):
    token = live.token("viewer")
    reply = live.request("POST", "/v1/session", body={"token": token}, headers=page(live))
    assert reply.body["role"] == "viewer"
    cookie = reply.headers["set-cookie"].partition(";")[0]
    refused = live.request(
        "POST", "/v1/nodes/n1/cordon", body={}, headers={"Cookie": cookie, **page(live)}
    )
    assert (refused.status, refused.body["code"]) == (403, "forbidden")


def test_a_wrong_token_does_not_sign_in(live):
    reply = live.request("POST", "/v1/session", body={"token": "no"}, headers=page(live))
    assert reply.status == 401


def test_sign_in_from_another_site_is_refused(live):
    for headers in (
        {},
        {"Origin": live.url},
        CHANGE,
        page(live, Origin="https://evil.example"),
        page(live, Origin="null"),
        page(live, **{"Sec-Fetch-Site": "cross-site"}),
    ):
        code = code_of(live)
        reply = live.request("POST", "/v1/session", body={"code": code}, headers=headers)
        assert (reply.status, reply.body["code"]) == (403, "forbidden"), headers


def test_a_change_with_a_cookie_needs_our_origin_and_our_header(live):
    cookie = {"Cookie": sign_in(live)}
    ours = {**cookie, **page(live)}
    assert live.request("POST", "/v1/nodes/n1/cordon", body={}, headers=ours).status == 200
    for headers in (
        {},
        {"Origin": live.url},
        CHANGE,
        page(live, Origin="http://evil.example"),
        page(live, Origin=live.url + "0"),
        page(live, **{"Sec-Fetch-Site": "same-site"}),
    ):
        reply = live.request("POST", "/v1/nodes/n1/uncordon", body={}, headers=cookie | headers)
        assert (reply.status, reply.body["code"]) == (403, "forbidden"), headers


def test_a_foreign_host_name_is_refused(live):
    cookie = sign_in(live)
    for path in ("/v1/session", "/v1/jobs"):
        reply = live.request("GET", path, headers={"Cookie": cookie, "Host": "evil.example"})
        assert (reply.status, reply.body["code"]) == (403, "forbidden")
    for host in ("localhost:1", "127.0.0.1", "[::1]:7400"):
        reply = live.request("GET", "/v1/jobs", headers={"Cookie": cookie, "Host": host})
        assert reply.status == 200
    token = live.request(
        "GET", "/v1/jobs", token=live.admin_secret, headers={"Host": "gpu.example"}
    )
    assert token.status == 200


def test_reads_caused_by_another_site_are_refused(live):
    cookie = {"Cookie": sign_in(live), "Sec-Fetch-Site": "cross-site"}
    assert live.request("GET", "/v1/jobs", headers=cookie).status == 403


def test_a_forged_cookie_is_refused(live):
    name, _, value = sign_in(live).partition("=")
    body, _, mac = value.rpartition(".")
    until = body.split(".")[1]
    for bad in (
        f"{body}.{'0' * len(mac)}",
        value.replace(until, str(int(until) + 1)),
        value.replace("admin", "tok-1"),
        "admin.1.2.é",
    ):
        reply = live.request(
            "GET", "/v1/jobs", headers={"Cookie": f"{name}={bad}".encode().decode("latin-1")}
        )
        assert reply.status == 401, bad


def test_a_revoked_token_ends_its_sessions(server, client):
    view = client.create_token("bob", role="user")
    cookie = {"Cookie": sign_in(server, view.secret)}
    assert server.request("GET", "/v1/jobs", headers=cookie).status == 200
    client.revoke_token(view.token_id)
    assert server.request("GET", "/v1/jobs", headers=cookie).status == 401


def test_signing_out_ends_the_session_on_the_server_too(live):
    cookie = {"Cookie": sign_in(live)}
    reply = live.request("DELETE", "/v1/session", headers={**cookie, **page(live)})
    assert "Max-Age=0" in reply.headers["set-cookie"]
    assert live.request("GET", "/v1/session", headers=cookie).status == 401


def test_a_session_outlives_the_server(tmp_path):
    with LiveServer(tmp_path) as first:
        cookie = {"Cookie": sign_in(first)}
    with LiveServer(tmp_path) as second:
        assert second.request("GET", "/v1/session", headers=cookie).status == 200


def test_behind_a_proxy_the_public_url_counts(tmp_path):
    public = "https://gpu.example.org/tercio"
    with LiveServer(tmp_path, public_url=public) as live:
        headers = {"Host": "gpu.example.org", "Origin": "https://gpu.example.org", **CHANGE}
        reply = live.request(
            "POST", "/tercio/v1/session", body={"code": code_of(live)}, headers=headers
        )
        assert reply.status == 200, reply.content
        assert "Path=/tercio;" in reply.headers["set-cookie"]
        assert "Secure" in reply.headers["set-cookie"]
        assert live.request("GET", "/v1/health").status == 200


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate by openssl")
def test_over_tls_the_cookie_is_for_tls_alone_and_the_origin_is_https(tmp_path, monkeypatch):
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=127.0.0.1 "
        f"-addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {certificate}"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    trusted = ssl.create_default_context(cafile=str(certificate))
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    settings = {"tls_cert": str(certificate), "tls_key": str(key)}
    with LiveServer(tmp_path / "state", **settings) as running:

        def ask(method, path, headers, body=None):
            asked = urllib.request.Request(
                running.url + path, method=method, headers=headers, data=body
            )
            return urllib.request.urlopen(asked, context=trusted)

        with Client(running.url, running.admin_secret) as client:
            code = client.sign_in_code().code
        body = json.dumps({"code": code}).encode()
        foreign = {"Origin": running.url.replace("https:", "http:"), **CHANGE}
        with pytest.raises(urllib.error.HTTPError) as refused:
            ask("POST", "/v1/session", foreign, body)
        assert refused.value.code == 403
        refused.value.close()
        with ask("POST", "/v1/session", page(running), body) as answer:
            cookie = answer.headers["set-cookie"]
        assert {"Secure", "HttpOnly", "SameSite=Strict"} <= set(cookie.split("; "))
        own = {"Cookie": cookie.partition(";")[0]}
        with ask("GET", "/v1/session", own) as answer:
            assert json.load(answer)["role"] == "admin"
        with ask("POST", "/v1/nodes/n1/cordon", {**own, **page(running)}, b"{}") as answer:
            assert json.load(answer)["cordons"]
