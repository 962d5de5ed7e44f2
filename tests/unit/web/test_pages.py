"""The document and its files: headers, caching, paths, and an installation without a page."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import threading
from contextlib import contextmanager

import pytest

from tercio.api.serve import bind, running
from tercio.config import Config, LocalConfig, ServerConfig
from tercio.web import is_built
from tercio.web.pages import page_routes

SCRIPT = b"console.log('tercio');" * 50
INDEX = b'<!doctype html><base href="/" /><script type="module" src="./assets/a-1.js"></script>'


@pytest.fixture
def static(tmp_path):
    (tmp_path / "static" / "assets").mkdir(parents=True)
    (tmp_path / "static" / "index.html").write_bytes(INDEX)
    (tmp_path / "static" / "assets" / "a-1.js").write_bytes(SCRIPT)
    return tmp_path / "static"


@contextmanager
def serving(state, static, **server):
    """Run a server with the pages of `static`; yields a function that asks it."""
    ready, found = threading.Event(), {}

    async def main():
        config = Config(
            state_dir=str(state),
            server=ServerConfig(port=0, **server),
            local=LocalConfig(enabled=False),
        )
        listener = bind(config.server)

        def pages(context):
            return page_routes(context, static)

        async with running(config, listener, {}, pages=pages) as live:
            found["loop"], found["live"] = asyncio.get_running_loop(), live
            ready.set()
            await live.serve(sockets=[listener])

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert ready.wait(30)
    live = found["live"]

    def ask(path, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", int(live.file.url.rpartition(":")[2]))
        try:
            connection.request("GET", path, headers=headers)
            with connection.getresponse() as answer:
                return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    try:
        yield ask
    finally:
        found["loop"].call_soon_threadsafe(live.stop)
        thread.join(30)


def test_every_view_is_the_same_document_under_a_strict_policy(tmp_path, static):
    with serving(tmp_path / "state", static) as ask:
        for path in ("/", "/jobs", "/jobs/job-00001", "/nodes/n1", "/settings", "/signin"):
            status, headers, content = ask(path)
            assert (status, content) == (200, INDEX)
            policy = headers["content-security-policy"]
            assert "default-src 'self'" in policy
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] == "no-cache"
            assert headers["content-type"] == "text/html; charset=utf-8"


def test_other_paths_are_still_not_there(tmp_path, static):
    with serving(tmp_path / "state", static) as ask:
        for path in ("/nope", "/assets/none.js", "/assets/../index.html", "/v1/nope", "/v2/x"):
            status, headers, _ = ask(path)
            assert (status, headers["content-type"]) == (404, "application/problem+json"), path
        assert ask("/v1/health")[0] == 200
        assert ask("/v1/jobs")[0] == 401


def test_files_are_kept_for_ever_and_sent_packed(tmp_path, static):
    with serving(tmp_path / "state", static) as ask:
        status, headers, content = ask("/assets/a-1.js")
        assert (status, content) == (200, SCRIPT)
        assert "immutable" in headers["cache-control"]
        _, packed, small = ask("/assets/a-1.js", **{"Accept-Encoding": "gzip, br"})
        assert packed["content-encoding"] == "gzip"
        assert gzip.decompress(small) == SCRIPT
        assert ask("/assets/a-1.js", **{"If-None-Match": headers["etag"]})[0] == 304


def test_a_foreign_host_name_gets_no_page(tmp_path, static):
    with serving(tmp_path / "state", static) as ask:
        assert ask("/", Host="evil.example")[0] == 403


def test_below_the_path_of_a_proxy(tmp_path, static):
    with serving(tmp_path / "state", static, public_url="https://gpu.example/tercio") as ask:
        for path in ("/", "/tercio/", "/tercio/jobs/job-00001"):
            status, _, content = ask(path, Host="gpu.example")
            assert (status, b'<base href="/tercio/">' in content) == (200, True)
        assert ask("/tercio/assets/a-1.js")[2] == SCRIPT
        assert ask("/tercio/v1/health")[0] == 200


def test_without_a_bundle_the_page_says_how_to_get_one(tmp_path):
    assert not is_built(tmp_path)
    with serving(tmp_path / "state", tmp_path) as ask:
        status, headers, content = ask("/")
        assert (status, headers["content-type"].partition(";")[0]) == (404, "text/plain")
        assert b"make ui" in content
        assert ask("/v1/health")[0] == 200


def build(static, number):
    """Write a build as `make ui` leaves it: nothing is left of the one before."""
    for old in static.rglob("*.js"):
        old.unlink()
    (static / "assets").mkdir(parents=True, exist_ok=True)
    (static / "assets" / f"part-{number}.js").write_bytes(b"export {};")
    (static / "assets" / f"a-{number}.js").write_bytes(b"import(`./part-%d.js`);" % number)
    (static / "index.html").write_bytes(INDEX.replace(b"a-1.js", b"a-%d.js" % number))


def test_a_running_server_serves_a_new_build_and_keeps_the_files_of_open_pages(tmp_path, static):
    with serving(tmp_path / "state", static) as ask:
        assert b"a-1.js" in ask("/jobs")[2]
        build(static, 2)
        assert b"a-2.js" in ask("/jobs")[2]
        assert ask("/assets/a-2.js")[0] == 200
        assert ask("/assets/a-1.js")[2] == SCRIPT
        build(static, 3)
        assert ask("/assets/part-3.js")[0] == 200
        assert ask("/assets/part-4.js")[0] == 404


@pytest.mark.parametrize("lacks", ["a-2.js", "part-2.js"])
@pytest.mark.parametrize("how", ["absent", "empty"])
def test_a_build_that_is_not_whole_yet_is_not_served(tmp_path, static, lacks, how):
    with serving(tmp_path / "state", static) as ask:
        build(static, 2)
        part = static / "assets" / lacks
        content = part.read_bytes()
        part.unlink()
        if how == "empty":
            part.write_bytes(b"")
        assert ask("/")[2] == INDEX
        assert ask("/assets/a-1.js")[2] == SCRIPT
        part.write_bytes(content)
        assert b"a-2.js" in ask("/")[2]


def test_a_server_that_began_without_a_page_serves_it_once_it_is_built(tmp_path):
    static = tmp_path / "static"
    with serving(tmp_path / "state", static) as ask:
        assert ask("/")[0] == 404
        build(static, 1)
        assert ask("/")[0] == 200
