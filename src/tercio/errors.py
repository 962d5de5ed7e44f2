"""The one error tree of Tercio.

Every error a user can meet is a `UserError` with a stable code and, where one exists, a
hint that says what to do. Unschedulable is not an error: it is a `Decision`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class TercioError(Exception):
    """Root of every error raised by Tercio itself."""


class UserError(TercioError):
    """Bad input or a refused request. Rendered as problem JSON by the API and `error:` by the CLI.

    Attributes:
        code: stable token, one of `invalid`, `not_found`, `conflict`, `forbidden`,
            `unauthorised`, `unsupported`, `never_fits`, `infeasible`, `too_large`.
        hint: what the user can do about it, or None.
        field: dotted path of the offending field, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "invalid",
        hint: str | None = None,
        field: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.hint = hint
        self.field = field


class EngineError(TercioError):
    """An engine could not do what it was asked."""

    def __init__(self, message: str, *, engine: str, operation: str, retryable: bool) -> None:
        super().__init__(f"{engine}: {operation}: {message}")
        self.message = message
        self.engine = engine
        self.operation = operation
        self.retryable = retryable


class StoreError(TercioError):
    """The journal could not be read or written. Nothing of the refused write is kept."""


class InvariantViolation(TercioError):
    """A bug in Tercio. Carries the story of the object, so that the message is the bug report."""

    def __init__(self, message: str, *, story: Sequence[str] = ()) -> None:
        text = message if not story else message + "\n" + "\n".join(story)
        super().__init__(text)
        self.story = tuple(story)


class IllegalTransition(InvariantViolation):
    """A state machine was asked for a pair that its table does not hold."""

    def __init__(self, subject: str, start: str, finish: str, *, story: Sequence[str] = ()) -> None:
        super().__init__(f"{subject}: {start} -> {finish} is not a legal transition", story=story)
        self.subject = subject
        self.start = start
        self.finish = finish


def did_you_mean(word: str, known: Iterable[str], *, limit: int = 3) -> str | None:
    """Return `did you mean 'x'?` for the nearest known words, or None when nothing is near.

    >>> did_you_mean("quue", ["queue", "user"])
    "did you mean 'queue'?"
    """
    known = list(known)
    near = difflib.get_close_matches(word.lower(), [k.lower() for k in known], n=limit, cutoff=0.6)
    by_lower = {k.lower(): k for k in known}
    if not near:
        return None
    names = [f"'{by_lower[n]}'" for n in near]
    return f"did you mean {' or '.join(names)}?"
