"""A CSV of prices, a policy, a flexible job: what a user and an operator see, over HTTP and CLI."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from live_server import LiveServer, job

from tercio.cli.main import run
from tercio.cli.session import Session
from tercio.config import HealthConfig
from tercio.model.events import JobPlaced, PricesRead

BY_PRICE = "queues: {default: {}}\nflexible: price\n"
OFF = "queues: {default: {}}\n"
ALL = {"gpus": "H100:4", "tasks": 2}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    """A server whose power costs 0.31 now and 0.12 from two hours on."""
    hour_s = time.time() // 3600 * 3600
    rows = [f"{hour_s + at * 3600:.0f},{0.31 if at < 2 else 0.12}" for at in range(-2, 48)]
    prices = tmp_path / "prices.csv"
    prices.write_text("\n".join(["hour,usd_per_kwh", *rows]))
    live = LiveServer(tmp_path / "state")
    health = HealthConfig(prices=str(prices))
    live.config = msgspec.structs.replace(live.config, health=health)
    with live:
        live.wait_for(PricesRead)
        yield live


def test_a_flexible_job_lets_others_go_first_until_power_is_cheaper(
    server: LiveServer, client, capsys: pytest.CaptureFixture[str]
) -> None:
    client.set_policy(BY_PRICE, if_version=0)
    holder = server.decided(client.submit(job("holder", **ALL)))
    times = {"limit": "1h", "flexible": "12h"}
    asked = client.plan(job("flex", time=times, **ALL))
    assert "flexible: lets others go first until" in asked.decision.message
    flex = server.decided(client.submit(job("flex", time=times, **ALL)))
    later = server.decided(client.submit(job("later", **ALL)))
    told = client.decision(flex).decision
    assert told.reason == "NoFreeDevices"
    assert "(0.31 → 0.12 USD/kWh); its slack ends" in told.message
    assert (told.position, client.decision(later).decision.position) == (2, 1)
    token = server.config.state_path / "token"
    assert run(["--url", server.url, "--token-file", str(token), "explain", flex], Session()) == 0
    assert "flexible: lets others go first until" in capsys.readouterr().out
    client.cancel(holder)
    server.wait_for(JobPlaced, later)
    assert client.job(flex).state == "queued"
    client.set_policy(OFF, if_version=1)
    assert "flexible" not in client.decision(flex).decision.message
    client.cancel(later)
    server.wait_for(JobPlaced, flex)


def test_a_free_cluster_starts_it_at_once(server: LiveServer, client) -> None:
    client.set_policy(BY_PRICE, if_version=0)
    times = {"limit": "1h", "flexible": "12h"}
    flex = client.submit(job("flex", time=times, **ALL)).ids[-1]
    server.wait_for(JobPlaced, flex)
