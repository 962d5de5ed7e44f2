"""Routes of signing in with a browser."""

from __future__ import annotations

from typing import Final

import msgspec

from tercio.api.bodies import NoBody, NoQuery, SignInBody
from tercio.api.sessions import CHANGE_HEADER, CODE_S
from tercio.api.table import JSON, Call, Raw, Route
from tercio.errors import UserError
from tercio.model.identity import Role
from tercio.model.views import SessionView, SignInCodeView

_NO_STORE: Final = {"Cache-Control": "no-store"}


async def new_code(call: Call[NoQuery, NoBody]) -> SignInCodeView:
    """Return a code that signs a browser in once, as the owner of this request's token."""
    token_id = call.context.auth.token_id(call.header("Authorization"))
    return SignInCodeView(
        code=call.context.sessions.new_code(token_id),
        public_url=call.context.config.server.public_url,
        expires_after_s=CODE_S,
    )


async def sign_in(call: Call[NoQuery, SignInBody]) -> Raw:
    """Exchange a one-time code, or a token, for a cookie."""
    context, body = call.context, call.body
    context.sessions.check_page(call.headers, is_change=True, scheme=call.scheme)
    if (body.code is None) == (body.token is None):
        raise UserError("send a code or a token", field="code", hint="one of the two")
    if body.code is not None:
        token_id = context.sessions.redeem(body.code)
    else:
        token_id = context.auth.token_id(f"Bearer {body.token}")
    owner = context.auth.owner(token_id)
    view = SessionView(user=owner.user, tenant=owner.tenant, role=owner.role.value)
    cookie = context.sessions.cookie(token_id)
    return Raw(
        content=msgspec.json.encode(view),
        media_type=JSON,
        headers={**_NO_STORE, "Set-Cookie": cookie},
    )


async def session(call: Call[NoQuery, NoBody]) -> SessionView:
    """Return whom this request's cookie or token stands for."""
    owner = call.principal
    return SessionView(user=owner.user, tenant=owner.tenant, role=owner.role.value)


async def sign_out(call: Call[NoQuery, NoBody]) -> Raw:
    """End the session of this request's cookie."""
    cookie = call.context.sessions.end(call.headers)
    return Raw(content=b"{}", media_type=JSON, headers={**_NO_STORE, "Set-Cookie": cookie})


ROUTES: Final = (
    Route(
        method="POST",
        path="/v1/session/codes",
        name="sign_in_code",
        summary="Make a code that signs a browser in once, within ten minutes",
        role=Role.VIEWER,
        perform=new_code,
        answer=SignInCodeView,
    ),
    Route(
        method="POST",
        path="/v1/session",
        name="sign_in",
        summary="Exchange a one-time code, or a token, for a session cookie",
        role=None,
        perform=sign_in,
        body=SignInBody,
        answer=SessionView,
        headers={
            "Origin": "of the page; must be this server's",
            CHANGE_HEADER: "any value; no form of another site can send it",
        },
    ),
    Route(
        method="GET",
        path="/v1/session",
        name="session",
        summary="Say whom the request's token or cookie stands for",
        role=Role.VIEWER,
        perform=session,
        answer=SessionView,
    ),
    Route(
        method="DELETE",
        path="/v1/session",
        name="sign_out",
        summary="End the session of the request's cookie",
        role=Role.VIEWER,
        perform=sign_out,
    ),
)
"""Routes of signing in."""
