"""Routes of sizing: how many devices, how long, how much."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from tercio.api.bodies import NoBody, NoQuery
from tercio.api.children import DEADLINE_S
from tercio.api.size_bodies import (
    SizeBody,
    SizeFinetuneBody,
    SizeFitBody,
    SizeServeBody,
    SizeTrainBody,
    SizingCatalogueView,
    SizingView,
)
from tercio.api.table import JSON, Call, Raw, Route
from tercio.model.identity import Role


async def catalogue(call: Call[NoQuery, NoBody]) -> SizingCatalogueView:
    """Return what can be sized."""
    site = call.context.config.sizing.site

    def read() -> SizingCatalogueView:
        from tercio.api.size_answers import catalogue_view
        from tercio.api.sizing import tables_of

        return catalogue_view(tables_of(site))

    return await asyncio.to_thread(read)


def _asking(task: str) -> Callable[[Call[NoQuery, Any]], Awaitable[Raw]]:
    async def perform(call: Call[NoQuery, SizeBody]) -> Raw:
        context = call.context
        question = {
            "body": msgspec.Raw(msgspec.json.encode(call.body)),
            "site": context.config.sizing.site,
        }
        content = await context.children.ask(task, question, deadline_s=DEADLINE_S)
        return Raw(content=content, media_type=JSON)

    return perform


ROUTES: Final = (
    Route(
        method="GET",
        path="/v1/size",
        name="size_catalogue",
        summary="List the models and parts that can be sized, with their sources",
        role=Role.VIEWER,
        perform=catalogue,
        answer=SizingCatalogueView,
    ),
    *(
        Route(
            method="POST",
            path=f"/v1/size/{verb}",
            name=f"size_{verb}",
            summary=summary,
            role=Role.USER,
            perform=_asking(f"size_{verb}"),
            body=body,
            answer=SizingView,
        )
        for verb, body, summary in (
            ("train", SizeTrainBody, "Rank training layouts by cost, deadline or budget"),
            ("finetune", SizeFinetuneBody, "Say on how few devices a fine-tune fits"),
            ("serve", SizeServeBody, "Size replicas for a load within latency limits"),
            ("fit", SizeFitBody, "Say whether a model fits, and where"),
        )
    ),
)
"""Routes of sizing."""
