"""Fixtures: a running server of its own for each test, and clients of it by role."""

import pytest
from live_server import LiveServer

from tercio.client import Client


@pytest.fixture
def server(tmp_path):
    with LiveServer(tmp_path) as live:
        yield live


@pytest.fixture
def connect(server):
    """Return clients by role: `connect("viewer", user="bob", tenant="blue")`."""
    opened = []

    def make(role="admin", **owner):
        secret = server.admin_secret if role == "admin" else server.token(role, **owner)
        opened.append(Client(server.url, secret, reconnect_s=5))
        return opened[-1]

    yield make
    for client in opened:
        client.close()


@pytest.fixture
def client(connect):
    return connect()
