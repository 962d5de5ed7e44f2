"""Errors as RFC 9457 problem details: one table from the error tree to HTTP."""

from __future__ import annotations

import logging
from typing import Any, Final

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException

from tercio.errors import EngineError, StoreError, UserError
from tercio.logs import facts
from tercio.model.views import Problem

MEDIA_TYPE: Final = "application/problem+json"

_log = logging.getLogger(__name__)

STATUS_BY_CODE: Final = {
    "invalid": 400,
    "unsupported": 400,
    "unauthorised": 401,
    "forbidden": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "conflict": 409,
    "resync": 410,
    "too_large": 413,
    "never_fits": 422,
    "infeasible": 422,
    "too_many": 429,
    "internal": 500,
    "unavailable": 503,
}

_TITLES: Final = {
    "invalid": "The request is not valid",
    "unsupported": "Not supported by this site",
    "unauthorised": "Not signed in",
    "forbidden": "Not allowed",
    "not_found": "Not found",
    "method_not_allowed": "The method does not go with the path",
    "conflict": "In conflict with the current state",
    "resync": "Older than what is kept",
    "too_large": "Too large",
    "never_fits": "Can never fit",
    "infeasible": "Not feasible",
    "too_many": "Too many at once",
    "internal": "A bug in Tercio",
    "unavailable": "Not available now",
}

_CODE_BY_STATUS: Final = {
    401: "unauthorised",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    503: "unavailable",
}


def make_problem(
    code: str, detail: str, *, hint: str | None = None, field: str | None = None
) -> Problem:
    """Return the problem for an error code; an unknown code is a refusal of the input."""
    return Problem(
        type=f"urn:tercio:problem:{code}",
        title=_TITLES.get(code, _TITLES["invalid"]),
        status=STATUS_BY_CODE.get(code, 400),
        detail=detail,
        code=code,
        hint=hint,
        field=field,
    )


def problem_of(error: Exception) -> Problem:
    """Return the problem that an exception stands for; what is not expected is logged."""
    match error:
        case UserError(message=message, code=code, hint=hint, field=field):
            return make_problem(code, message, hint=hint, field=field)
        case StoreError():
            return make_problem(
                "unavailable",
                f"the journal could not be used: {error}",
                hint="nothing of the request was kept; ask the operator to check the disk",
            )
        case EngineError():
            return make_problem(
                "unavailable", str(error), hint="the engine may answer later; see `tercio doctor`"
            )
        case NotFoundException():
            return make_problem(
                "not_found", "there is no such path", hint="GET /schema lists every path"
            )
        case MethodNotAllowedException():
            return make_problem(
                "method_not_allowed",
                "the path does not take this method",
                hint="GET /schema lists the methods of every path",
            )
        case HTTPException(status_code=status) if status < 500:
            code = _CODE_BY_STATUS.get(status, "invalid")
            return make_problem(code, str(error.detail) or _TITLES[code])
        case _:
            _log.error("request_failed", exc_info=error, extra=facts(error=type(error).__name__))
            return make_problem(
                "internal",
                f"the request failed inside the server: {type(error).__name__}",
                hint="the server's log has the details; please report it",
            )


def problem_response(_: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Return the HTTP answer for an exception."""
    problem = problem_of(error)
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    if problem.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="tercio"'
    if problem.status == 503:
        headers["Retry-After"] = "1"
    return Response(
        msgspec.json.encode(problem),
        status_code=problem.status,
        media_type=MEDIA_TYPE,
        headers=headers,
    )
