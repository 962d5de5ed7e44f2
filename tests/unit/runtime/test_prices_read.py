"""Prices are read from a file or an address; only news is told, and a bad file changes nothing."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tercio.core.cluster import Cluster
from tercio.errors import UserError
from tercio.model.events import AnyEvent, PricesRead
from tercio.runtime.prices import PriceReader, read_prices

NOW_S = 7200.0
TEXT = "hour,usd_per_kwh\n3600,0.31\n7200,0.31\n10800,0.12\n"


class Site:
    def __init__(self, source: str) -> None:
        self.cluster = Cluster()
        self.told: list[AnyEvent] = []
        self.reader = PriceReader(
            source, cluster=lambda: self.cluster, deliver=self.take, now=lambda: NOW_S
        )

    def take(self, event: AnyEvent) -> None:
        self.told.append(event)
        self.cluster.apply(event)

    def read(self, count: int = 1) -> list[float | None]:
        """Read some times; return the prices that were told by then."""
        for _ in range(count):
            asyncio.run(self.reader.read())
        assert all(isinstance(event, PricesRead) for event in self.told)
        return [hour.price_usd_per_kwh for hour in self.cluster.prices.series.hours]


def test_a_file_is_told_once_and_again_when_it_says_something_else(tmp_path: Path) -> None:
    file = tmp_path / "prices.csv"
    file.write_text(TEXT)
    site = Site(str(file))
    assert site.read(3) == [0.31, 0.31, 0.12]
    assert len(site.told) == 1
    file.write_text(TEXT.replace("0.12", "0.5"))
    assert site.read(2) == [0.31, 0.31, 0.5]
    assert len(site.told) == 2


@pytest.mark.parametrize("bad", ["hour,usd\n0,1\n", None, b"\xff\xfe"])
def test_what_cannot_be_read_leaves_what_is_known_and_is_logged_once(
    tmp_path: Path, bad: str | bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "prices.csv"
    file.write_text(TEXT)
    site = Site(str(file))
    site.read()
    file.unlink()
    if bad is not None:
        file.write_bytes(bad if isinstance(bad, bytes) else bad.encode())
    with caplog.at_level(logging.WARNING):
        assert site.read(2) == [0.31, 0.31, 0.12]
    assert [record.message for record in caplog.records] == ["prices_not_read"]


def test_a_wrong_file_is_named_with_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "prices.csv"
    file.write_text("hour,usd_per_kw\n")
    with pytest.raises(UserError, match=r"prices\.csv: unknown column 'usd_per_kw'") as caught:
        read_prices(str(file))
    assert "did you mean 'usd_per_kwh'" in str(caught.value.hint)


def test_without_a_source_nothing_is_read_and_what_was_sent_stays(tmp_path: Path) -> None:
    site = Site("")
    site.cluster.apply(PricesRead(at_s=NOW_S, series=read_prices(str(_file(tmp_path))), by="ana"))

    async def run() -> None:
        site.reader.start()
        await asyncio.sleep(0)
        await site.reader.stop()

    asyncio.run(run())
    assert site.told == []
    assert site.cluster.prices.series.hours


def test_the_reader_says_what_it_could_not_read_until_it_can(tmp_path: Path) -> None:
    file = tmp_path / "prices.csv"
    site = Site(str(file))
    site.read()
    assert "cannot be read" in site.reader.failure
    assert site.reader.read_s is None
    file.write_text(TEXT)
    site.read()
    assert (site.reader.failure, site.reader.read_s) == ("", NOW_S)


def test_an_address_is_shown_without_the_secrets_that_it_may_carry() -> None:
    source = "http://me:word@127.0.0.1:1/csv?securityToken=abc"
    site = Site(source)
    site.read()
    assert site.reader.source == "http://127.0.0.1:1/csv"
    assert "127.0.0.1:1/csv" in site.reader.failure
    assert not any(secret in site.reader.failure for secret in ("word", "abc", "Token"))


def _file(directory: Path) -> Path:
    file = directory / "prices.csv"
    file.write_text(TEXT)
    return file


@pytest.fixture
def address() -> Iterator[str]:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/csv" else 503)
            self.end_headers()
            self.wfile.write(TEXT.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_address_is_read_like_a_file(address: str) -> None:
    assert Site(f"{address}/csv").read() == [0.31, 0.31, 0.12]
    with pytest.raises(UserError, match="cannot be read"):
        read_prices(f"{address}/away")
