"""The table of all routes."""

from __future__ import annotations

from typing import Final

from tercio.api.routes import (
    events,
    execs,
    fleet,
    health,
    jobs,
    prices,
    report,
    series,
    server,
    sessions,
    shadow,
    sharing,
    sites,
    sizing,
    twin,
)
from tercio.api.table import Route

ROUTES: Final[tuple[Route, ...]] = (
    *jobs.ROUTES,
    *execs.ROUTES,
    *fleet.ROUTES,
    *health.ROUTES,
    *prices.ROUTES,
    *report.ROUTES,
    *series.ROUTES,
    *sharing.ROUTES,
    *shadow.ROUTES,
    *sites.ROUTES,
    *sizing.ROUTES,
    *twin.ROUTES,
    *events.ROUTES,
    *server.ROUTES,
    *sessions.ROUTES,
)
"""Every route of the API but `/schema`, which is made from this."""
