"""Links that sign a browser in to the web page."""

from __future__ import annotations

from tercio.cli.session import Session


def sign_in_link(url: str, code: str) -> str:
    """Return the link that signs a browser in. What follows `#` is sent to no server or proxy."""
    return f"{url.rstrip('/')}/signin#code={code}"


def fresh_link(session: Session) -> str:
    """Ask the server for a code, and return its link: it works once, for ten minutes."""
    answer = session.client.sign_in_code()
    return sign_in_link(answer.public_url or session.client.address.url, answer.code)
