"""Reads what power costs from the site's file or address, and tells the core when it changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Final
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

    Args:
        source: file or address of a CSV, see `energy.series`; empty for none.
        cluster: what is known.
        deliver: takes the event.
        now: seconds since the epoch.
    """

    def __init__(
        self,
        source: str,
        *,
        cluster: Callable[[], Cluster],
        deliver: Callable[[AnyEvent], None],
        now: Callable[[], float],
    ) -> None:
        self._source = source
        self._cluster = cluster
        self._deliver = deliver
        self._now = now
        self._failure = ""
        pause_s = ADDRESS_EVERY_S if source.startswith(_ADDRESS) else FILE_EVERY_S
        self._loop = Periodic("prices", self.read, pause=every(pause_s))

    def start(self) -> None:
        """Begin to read."""
        self._loop.start()

    async def stop(self) -> None:
        """Read no more; what is known stays."""
        await self._loop.stop()

    async def read(self) -> None:
        """Read once. What cannot be read leaves what is known, and is logged once."""
        try:
            series = await asyncio.to_thread(read_prices, self._source)
        except UserError as failure:
            if failure.message != self._failure:
                log.warning(
                    "prices_not_read", extra=facts(error=failure.message, hint=failure.hint)
                )
            self._failure = failure.message
            return
        self._failure = ""
        now_s = self._now()
        fresh = window(series, now_s)
        if is_news(self._cluster().prices.series, fresh, now_s):
            self._deliver(PricesRead(at_s=now_s, series=fresh))


def read_prices(source: str) -> GridSeries:
    """Read a price and carbon series; an empty source is an empty one. Blocks.

    Raises:
        UserError: it cannot be read, or makes no sense.
    """
    if not source:
        return GridSeries()
    try:
        if source.startswith(_ADDRESS):
            with urlopen(source, timeout=_TIMEOUT_S) as answer:
                text = answer.read(_BYTES_MAX).decode("utf-8")
        else:
            text = Path(source).read_text(encoding="utf-8")
    except (OSError, ValueError, HTTPException) as error:
        raise UserError(
            f"health.prices: {source} cannot be read: {error}", field="health.prices"
        ) from None
    try:
        return parse_grid_csv(text)
    except UserError as error:
        raise UserError(
            f"health.prices: {source}: {error.message}", hint=error.hint, field="health.prices"
        ) from None
