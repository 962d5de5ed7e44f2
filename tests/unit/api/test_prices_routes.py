"""What power costs, sent and shown: over HTTP, in the notes of the server, and by command."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest
from live_server import LiveServer

from tercio.cli.main import run
from tercio.cli.session import Session
from tercio.config import HealthConfig
from tercio.model.events import PricesRead

BY_PRICE = "queues: {default: {}}\nflexible: price\n"
HOUR_S = 3600.0


def csv(first: int, *prices: float, head: str = "hour,usd_per_kwh") -> str:
    """Prices by the hour; the first of them `first` hours after this one."""
    hour_s = time.time() // HOUR_S * HOUR_S
    rows = [f"{hour_s + (first + at) * HOUR_S:.0f},{price}" for at, price in enumerate(prices)]
    return "\n".join([head, *rows]) + "\n"


def put(live: LiveServer, file: str, role: str = "operator"):
    return live.request("PUT", "/v1/prices", body={"file": file}, token=live.token(role))


def show(live: LiveServer):
    return live.request("GET", "/v1/prices", token=live.token("viewer")).body


def prices(body):
    return [row["price_usd_per_kwh"] for row in body["rows"]]


def notes(live: LiveServer):
    told = live.request("GET", "/v1/server", token=live.admin_secret).body["notes"]
    return [note for note in told if note.startswith("prices: ")]


def test_prices_are_sent_shown_added_to_and_forgotten(server: LiveServer) -> None:
    assert (show(server)["rows"], show(server)["price_until_s"]) == ([], None)
    sent = put(server, csv(0, *[0.31] * 8))
    assert sent.status == 200
    assert show(server) == sent.body
    assert sent.body["price_usd_per_kwh"] == 0.31
    assert prices(sent.body) == [0.31] * len(sent.body["rows"])
    assert server.wait_for(PricesRead).by == "ana"
    later = put(server, csv(6, *[0.12] * 24)).body
    # An hour may end between two requests.
    assert prices(later) in ([0.31] * 6 + [0.12] * 24, [0.31] * 5 + [0.12] * 24)
    assert later["price_until_s"] == later["rows"][-1]["at_s"] + HOUR_S
    assert put(server, "hour,usd_per_kwh\n").body["rows"] == []


def test_what_makes_no_sense_and_who_may_not_are_refused(server: LiveServer) -> None:
    assert put(server, csv(0, 0.1), role="user").status == 403
    wrong = put(server, csv(0, 0.1, head="hour,usd_per_kw"))
    assert (wrong.status, wrong.body["field"]) == (400, "usd_per_kw")
    over = put(server, csv(-9, 0.1))
    assert over.status == 400
    assert "the last hour is over" in over.body["detail"]


def test_a_policy_that_lacks_prices_is_told_when_it_is_set_and_until_there_are_some(
    server: LiveServer, client
) -> None:
    assert notes(server) == []
    (warning,) = client.set_policy(BY_PRICE, if_version=0).warnings
    assert "no price of power is known for now" in warning
    assert notes(server) == [f"prices: {warning}"]
    assert show(server)["warning"] == warning
    put(server, csv(0, *[0.31] * 5))
    (soon,) = client.policy_plan(BY_PRICE).warnings
    assert "has no effect after" in soon
    put(server, csv(0, *[0.31] * 24))
    assert client.policy_plan(BY_PRICE).warnings == ()
    assert notes(server) == []


def test_a_source_that_cannot_be_read_is_in_the_notes_and_takes_no_other_prices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live = LiveServer(tmp_path / "state")
    health = HealthConfig(prices=str(tmp_path / "none.csv"))
    live.config = msgspec.structs.replace(live.config, health=health)
    with live:
        live.read_prices()
        assert "none.csv cannot be read" in show(live)["failure"]
        (note,) = notes(live)
        assert "none.csv cannot be read" in note
        refused = put(live, csv(0, 0.1))
        assert (refused.status, refused.body["field"]) == (409, "health.prices")
        token = live.config.state_path / "token"
        argv = ["--url", live.url, "--token-file", str(token)]
        assert run([*argv, "health", "prices"], Session()) == 0
        told = capsys.readouterr()
        assert "none.csv" in told.out
        assert "cannot be read" in told.err


def test_the_command_pushes_shows_and_forgets(
    server: LiveServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tomorrow.csv"
    file.write_text(csv(0, *[0.31] * 30))
    token = server.config.state_path / "token"
    argv = ["--url", server.url, "--token-file", str(token), "health", "prices"]
    assert run([*argv, "push", str(file)], Session()) == 0
    told = capsys.readouterr()
    assert "0.31 USD/kWh now; known until" in told.out
    assert "carbon  not known now" in told.out
    assert "sent with" in told.out
    assert "more hours" in told.err
    assert run([*argv, "forget"], Session()) == 0
    capsys.readouterr()
    assert run(argv, Session()) == 0
    told = capsys.readouterr().out
    assert "nowhere yet" in told
    assert "price   not known now" in told
    assert run([*argv, "push", str(tmp_path / "none.csv")], Session()) != 0
    assert "hint: write a CSV" in capsys.readouterr().err
    file.write_text("hour,usd\n")
    assert run([*argv, "push", str(file)], Session()) == 2
    assert "tomorrow.csv: unknown column 'usd'" in capsys.readouterr().err
