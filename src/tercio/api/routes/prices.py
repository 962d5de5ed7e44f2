"""Routes of prices: what power costs, until when that is known, and who says so."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from tercio.api.bodies import NoBody, NoQuery, PricesBody
from tercio.api.context import ApiContext
from tercio.api.table import Call, Route
from tercio.core.prices import known_until_s, lacking
from tercio.energy.series import parse_grid_csv
from tercio.errors import UserError
from tercio.model.commands import SendPrices
from tercio.model.grid import GridSeries
from tercio.model.health_views import PriceHour, PricesView
from tercio.model.identity import Role
from tercio.model.queue import Flexible

BYTES_MAX: Final = 1024 * 1024


async def show_prices(call: Call[NoQuery, NoBody]) -> PricesView:
    """Return what power costs from now on, and what is wrong with that."""
    return _view(call.context)


def _view(context: ApiContext) -> PricesView:
    cluster, reader, now_s = context.cluster, context.prices, context.now()
    series, by = cluster.prices.series, cluster.policy.flexible
    at_once = series.at(now_s)
    return PricesView(
        source=reader.source,
        failure=reader.failure,
        read_s=reader.read_s,
        flexible=by,
        warning=lacking(series, by, now_s),
        price_usd_per_kwh=at_once.price_usd_per_kwh if at_once else None,
        carbon_g_per_kwh=at_once.carbon_g_per_kwh if at_once else None,
        price_until_s=known_until_s(series, Flexible.PRICE, now_s),
        carbon_until_s=known_until_s(series, Flexible.CARBON, now_s),
        rows=tuple(
            PriceHour(
                at_s=hour.at_s,
                price_usd_per_kwh=hour.price_usd_per_kwh,
                carbon_g_per_kwh=hour.carbon_g_per_kwh,
            )
            for hour in series.between(now_s, math.inf).hours
            if series.end_s > now_s
        ),
    )


def price_notes(context: ApiContext) -> Iterable[str]:
    """Yield what an operator should know of prices."""
    if context.prices.failure:
        yield f"prices: {context.prices.failure}; what was known before stays"
    cluster = context.cluster
    warning = lacking(cluster.prices.series, cluster.policy.flexible, context.now())
    if warning:
        yield f"prices: {warning}"


async def send_prices(call: Call[NoQuery, PricesBody]) -> PricesView:
    """Take what power costs from now on."""
    context = call.context
    if context.prices.source:
        raise UserError(
            f"the server reads prices from {context.prices.source}, which would replace these",
            code="conflict",
            field="health.prices",
            hint="write them there, or take health.prices out of the configuration",
        )
    series = await call.read(lambda: _parsed(call.body, context.now()))
    await context.controller.execute(SendPrices(series=series), call.principal)
    return _view(context)


def _parsed(body: PricesBody, now_s: float) -> GridSeries:
    if len(body.file) > BYTES_MAX:
        raise UserError("file: the prices are too long", code="too_large", field="file")
    source = body.source or "prices"
    try:
        series = parse_grid_csv(body.file)
    except UserError as error:
        raise UserError(f"{source}: {error.message}", hint=error.hint, field=error.field) from None
    if series.hours and series.end_s <= now_s:
        raise UserError(
            f"{source}: the last hour is over",
            field="hour",
            hint="send hours to come; hours are UTC unless they say otherwise",
        )
    return series


ROUTES: Final = (
    Route(
        method="GET",
        path="/v1/prices",
        name="prices",
        summary="Show what power costs from now on, and until when that is known",
        role=Role.VIEWER,
        perform=show_prices,
        answer=PricesView,
    ),
    Route(
        method="PUT",
        path="/v1/prices",
        name="send_prices",
        summary="Say what power costs from an hour on; for servers that read no prices themselves",
        role=Role.OPERATOR,
        perform=send_prices,
        body=PricesBody,
        answer=PricesView,
    ),
)
"""Routes of prices."""
