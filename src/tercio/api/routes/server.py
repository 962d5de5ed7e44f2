"""Routes of the server itself: facts, health, metrics, backup, snapshots, tokens."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import IO, Final

import tercio
from tercio.api.auth import digest, new_secret, new_token_id
from tercio.api.bodies import NoBody, NoQuery, PageQuery, TokenBody
from tercio.api.context import ApiContext
from tercio.api.routes.fleet import page
from tercio.api.routes.prices import price_notes
from tercio.api.table import JSON, Call, Done, Raw, Route, Stream
from tercio.core.snapshots import save_state
from tercio.errors import EngineError, UserError
from tercio.model.commands import CreateToken, RevokeToken
from tercio.model.identity import Principal, Role, Token
from tercio.model.ids import SiteName
from tercio.model.job import ACTIVE_JOB_STATES, WAITING_JOB_STATES
from tercio.model.views import (
    HealthView,
    ServerView,
    TokenList,
    TokenView,
    WorkdirView,
)
from tercio.runtime.controller import Controller
from tercio.runtime.metrics import CONTENT_TYPE

_CHUNK_BYTES: Final = 1 << 20


async def health(_: Call[NoQuery, NoBody]) -> HealthView:
    """Say that the server answers."""
    return HealthView(version=tercio.__version__)


async def server(call: Call[NoQuery, NoBody]) -> ServerView:
    """Return facts of the server itself."""
    context = call.context
    cluster = context.cluster
    states = [job.state for job in cluster.jobs.values()]
    return ServerView(
        version=tercio.__version__,
        epoch=cluster.epoch,
        started_s=context.started_s,
        now_s=context.now(),
        seq=context.journal.last_seq,
        sites=context.controller.sites,
        jobs_waiting=sum(state in WAITING_JOB_STATES for state in states),
        jobs_active=sum(state in ACTIVE_JOB_STATES for state in states),
        nodes=len(cluster.nodes),
        journal_schema=context.journal.schema_version,
        notes=(
            *_notes(context.controller),
            *price_notes(context),
            *context.policy_shadow.notes(),
        ),
    )


def _notes(controller: Controller) -> tuple[str, ...]:
    """Return what an operator should know: troubles now, and what the sites cannot do."""
    limits = [
        f"site {site}: {note}" for site in controller.sites for note in _limits(controller, site)
    ]
    return (*controller.notes(), *limits)


def _limits(controller: Controller, site: SiteName) -> Iterable[str]:
    """Return what a site cannot do; nothing while it is not open."""
    try:
        return controller.engine_of(site).capabilities.notes.values()
    except EngineError:
        return ()


async def metrics(call: Call[NoQuery, NoBody]) -> Raw:
    """Return the metrics in Prometheus text format."""
    return Raw(content=call.context.controller.metrics.render(), media_type=CONTENT_TYPE)


async def backup(call: Call[NoQuery, NoBody]) -> Stream:
    """Send a consistent copy of the journal."""
    file, size_bytes = await asyncio.to_thread(_copy, call.context)
    return Stream(
        chunks=_chunks(file),
        media_type="application/octet-stream",
        headers={
            "Content-Disposition": 'attachment; filename="tercio-backup.db"',
            "Content-Length": str(size_bytes),
        },
    )


def _copy(context: ApiContext) -> tuple[IO[bytes], int]:
    """Copy the journal to a file that has no name any more when it is returned."""
    with tempfile.TemporaryDirectory(prefix="backup-", dir=context.scratch) as directory:
        path = Path(directory) / "journal.db"
        context.journal.backup(path)
        return path.open("rb"), path.stat().st_size


async def _chunks(file: IO[bytes]) -> AsyncIterator[bytes]:
    with file:
        while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
            yield chunk


async def snapshot(call: Call[NoQuery, NoBody]) -> Raw:
    """Send the state as the twin takes it, without secrets."""
    context = call.context
    image, now_s = context.cluster.image(), context.now()
    content = await asyncio.to_thread(save_state, image, saved_s=now_s, version=tercio.__version__)
    return Raw(content=content, media_type=JSON)


async def upload_workdir(call: Call[NoQuery, NoBody]) -> WorkdirView:
    """Store a snapshot of a directory."""
    with await asyncio.to_thread(call.context.controller.workdirs.upload) as upload:
        async for chunk in call.upload():
            await asyncio.to_thread(upload.write, chunk)
        return WorkdirView(workdir=await asyncio.to_thread(upload.finish))


async def list_tokens(call: Call[PageQuery, NoBody]) -> TokenList:
    """Return a page of tokens, without their secrets."""
    tokens = call.context.cluster.tokens
    rows, following = page(list(tokens.values()), list(tokens), call.query, "tokens")
    return TokenList(rows=tuple(_token_view(token) for token in rows), next=following)


async def create_token(call: Call[NoQuery, TokenBody]) -> TokenView:
    """Create a token; only this answer has its secret."""
    body, context = call.body, call.context
    if body.expires_s is not None and body.expires_s <= context.now():
        raise UserError(
            f"expires_s: {body.expires_s:g} is in the past",
            field="expires_s",
            hint="send seconds since the epoch, later than now",
        )
    secret = new_secret()
    token = Token(
        token_id=new_token_id(),
        sha256=digest(secret),
        principal=Principal(user=body.user, tenant=body.tenant, role=body.role, groups=body.groups),
        expires_s=body.expires_s,
    )
    await context.controller.execute(CreateToken(token=token), call.principal)
    return _token_view(token, secret=secret)


async def revoke_token(call: Call[NoQuery, NoBody]) -> Done:
    """Refuse a token from now on."""
    await call.context.controller.execute(RevokeToken(token_id=call.path["token"]), call.principal)
    return Done()


def _token_view(token: Token, *, secret: str | None = None) -> TokenView:
    owner = token.principal
    return TokenView(
        token_id=token.token_id,
        user=owner.user,
        tenant=owner.tenant,
        role=owner.role.value,
        groups=owner.groups,
        expires_s=token.expires_s,
        secret=secret,
    )


ROUTES: Final = (
    Route(
        method="GET",
        path="/v1/health",
        name="health",
        summary="Say that the server answers",
        role=None,
        perform=health,
        answer=HealthView,
    ),
    Route(
        method="GET",
        path="/v1/server",
        name="server",
        summary="Show facts of the server itself",
        role=Role.VIEWER,
        perform=server,
        answer=ServerView,
    ),
    Route(
        method="GET",
        path="/metrics",
        name="metrics",
        summary="Metrics in Prometheus text format",
        role=Role.VIEWER,
        perform=metrics,
        media_types=(CONTENT_TYPE,),
    ),
    Route(
        method="GET",
        path="/v1/backup",
        name="backup",
        summary="A consistent copy of the journal",
        role=Role.ADMIN,
        perform=backup,
        media_types=("application/octet-stream",),
    ),
    Route(
        method="GET",
        path="/v1/snapshot",
        name="snapshot",
        summary="Policy, nodes, queue and running jobs, for the twin; without secrets",
        role=Role.OPERATOR,
        perform=snapshot,
        media_types=(JSON,),
    ),
    Route(
        method="POST",
        path="/v1/workdirs",
        name="upload_workdir",
        summary="Store a snapshot of a directory (tar.gz)",
        role=Role.USER,
        perform=upload_workdir,
        answer=WorkdirView,
        upload="application/gzip",
        is_workdir=True,
    ),
    Route(
        method="GET",
        path="/v1/tokens",
        name="tokens",
        summary="List tokens, without their secrets",
        role=Role.ADMIN,
        perform=list_tokens,
        query=PageQuery,
        answer=TokenList,
    ),
    Route(
        method="POST",
        path="/v1/tokens",
        name="create_token",
        summary="Create a token; only this answer has its secret",
        role=Role.ADMIN,
        perform=create_token,
        body=TokenBody,
        answer=TokenView,
    ),
    Route(
        method="DELETE",
        path="/v1/tokens/{token}",
        name="revoke_token",
        summary="Refuse a token from now on",
        role=Role.ADMIN,
        perform=revoke_token,
    ),
)
"""Routes of the server itself."""
