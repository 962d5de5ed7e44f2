"""`tercio web`: a link that signs in once, at the URL that people reach."""

from __future__ import annotations

import webbrowser

from tercio.model.views import SignInCodeView

CODE = SignInCodeView(code="c0de", expires_after_s=600.0)


def test_the_link_holds_the_code_in_its_fragment(tercio, server):
    server.on("POST", "/v1/session/codes", CODE)
    server.on("GET", "/signin", b"<!doctype html>")
    assert tercio("web") == (0, f"{server.url}/signin#code=c0de\n", "")


def test_the_public_url_is_where_people_come(tercio, server):
    public = SignInCodeView(
        code="c0de", public_url="https://gpu.example.org/tercio/", expires_after_s=600.0
    )
    server.on("POST", "/v1/session/codes", public)
    server.on("GET", "/signin", b"<!doctype html>")
    assert tercio("web").out == "https://gpu.example.org/tercio/signin#code=c0de\n"


def test_it_opens_in_a_browser_when_asked(tercio, server, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    server.on("POST", "/v1/session/codes", CODE)
    server.on("GET", "/signin", b"<!doctype html>")
    result = tercio("web", "--open")
    assert opened == [result.out.strip()]
    assert "no browser could be started" in result.err


def test_it_says_at_once_that_the_page_is_not_built(tercio, server):
    server.on("POST", "/v1/session/codes", CODE)
    server.on("GET", "/signin", b"The web page is not part of this installation.", status=404)
    code, out, err = tercio("web")
    assert (code, out) == (0, f"{server.url}/signin#code=c0de\n")
    assert "make ui" in err
