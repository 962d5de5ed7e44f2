"""Reads what power costs from the site's file or address, and tells the core when it changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit, urlunsplit
from urllib.request import urlopen

from tercio.core.cluster import Cluster
from tercio.core.prices import is_news, window
from tercio.energy.series import parse_grid_csv
from tercio.errors import UserError
from tercio.logs import facts
from tercio.model.events import AnyEvent, PricesRead
from tercio.model.grid import GridSeries
from tercio.runtime.periodic import Periodic, every

FILE_EVERY_S: Final = 60.0
ADDRESS_EVERY_S: Final = 900.0
_ADDRESS: Final = ("http://", "https://")
_TIMEOUT_S: Final = 10.0
_BYTES_MAX: Final = 8 * 1024**2
log = logging.getLogger(__name__)


class PriceReader:
    """Reads again and again; the core hears only what is news to it.

    Without a source nothing is read: what is known, or is sent, stays until it ends.

    Args:
        source: file or address of a CSV, see `energy.series`; empty for none.
        cluster: what is known.
        deliver: takes the event.
        now: seconds since the epoch.

    Attributes:
        failure: why it could not be read the last time; empty where it could.
        read_s: when it was last read, None for never.
    """

    def __init__(
        self,
        source: str,
        *,
        cluster: Callable[[], Cluster],
        deliver: Callable[[AnyEvent], None],
        now: Callable[[], float],
    ) -> None:
        self.failure = ""
        self.read_s: float | None = None
        self._source = source
        self._cluster = cluster
        self._deliver = deliver
        self._now = now
        pause_s = ADDRESS_EVERY_S if source.startswith(_ADDRESS) else FILE_EVERY_S
        self._loop = Periodic("prices", self.read, pause=every(pause_s))

    def start(self) -> None:
        """Begin to read."""
        if self._source:
            self._loop.start()

    async def stop(self) -> None:
        """Read no more; what is known stays."""
        await self._loop.stop()

    async def read(self) -> None:
        """Read once. What cannot be read leaves what is known, and is logged once."""
        try:
            series = await asyncio.to_thread(read_prices, self._source)
        except UserError as failure:
            if failure.message != self.failure:
                log.warning(
                    "prices_not_read", extra=facts(error=failure.message, hint=failure.hint)
                )
            self.failure = failure.message
            return
        self.failure = ""
        now_s = self.read_s = self._now()
        fresh = window(series, now_s)
        if is_news(self._cluster().prices.series, fresh, now_s):
            self._deliver(PricesRead(at_s=now_s, series=fresh))

    @property
    def source(self) -> str:
        """What is read, without what an address may carry of secrets."""
        return shown_source(self._source)


def shown_source(source: str) -> str:
    """Return a file's or an address's name without password and query, which may be a key.

    >>> shown_source("https://me:secret@prices.example.org/csv?key=1")
    'https://prices.example.org/csv'
    """
    if not source.startswith(_ADDRESS):
        return source
    parts = urlsplit(source)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def read_prices(source: str) -> GridSeries:
    """Read a price and carbon series; an empty source is an empty one. Blocks.

    Raises:
        UserError: it cannot be read, or makes no sense.
    """
    if not source:
        return GridSeries()
    name = shown_source(source)
    try:
        if source.startswith(_ADDRESS):
            with urlopen(source, timeout=_TIMEOUT_S) as answer:
                text = answer.read(_BYTES_MAX).decode("utf-8")
        else:
            text = Path(source).read_text(encoding="utf-8")
    except (OSError, ValueError, HTTPException) as error:
        raise UserError(
            f"health.prices: {name} cannot be read: {error}", field="health.prices"
        ) from None
    try:
        return parse_grid_csv(text)
    except UserError as error:
        raise UserError(
            f"health.prices: {name}: {error.message}", hint=error.hint, field="health.prices"
        ) from None
