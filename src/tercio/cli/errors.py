"""Exit codes and the way an error is told: one table, at most four lines, no traceback."""

from __future__ import annotations

import sys
import traceback
from enum import IntEnum
from typing import Final

import click

from tercio.errors import EngineError, StoreError, TercioError, UserError


class ExitCode(IntEnum):
    """What the status of `tercio` means to a script."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    FORBIDDEN = 5
    UNAVAILABLE = 6
    INFEASIBLE = 7
    NEVER_FITS = 8
    TIMED_OUT = 9
    INTERRUPTED = 130


MEANINGS: Final[dict[ExitCode, str]] = {
    ExitCode.OK: "it worked",
    ExitCode.FAILED: "the operation, or the job that was waited for, failed",
    ExitCode.USAGE: "wrong usage or invalid input",
    ExitCode.NOT_FOUND: "no such object",
    ExitCode.CONFLICT: "conflict with the current state, or a stale version",
    ExitCode.FORBIDDEN: "not authorised",
    ExitCode.UNAVAILABLE: "the server or an engine cannot be reached; try again",
    ExitCode.INFEASIBLE: "cannot start now, would queue (plan)",
    ExitCode.NEVER_FITS: "can never fit (plan, submit)",
    ExitCode.TIMED_OUT: "the wait timed out",
    ExitCode.INTERRUPTED: "interrupted with Ctrl-C",
}

EXIT_BY_ERROR_CODE: Final[dict[str, ExitCode]] = {
    "invalid": ExitCode.USAGE,
    "unsupported": ExitCode.USAGE,
    "too_large": ExitCode.USAGE,
    "not_found": ExitCode.NOT_FOUND,
    "conflict": ExitCode.CONFLICT,
    "resync": ExitCode.CONFLICT,
    "forbidden": ExitCode.FORBIDDEN,
    "unauthorised": ExitCode.FORBIDDEN,
    "unavailable": ExitCode.UNAVAILABLE,
    "infeasible": ExitCode.INFEASIBLE,
    "never_fits": ExitCode.NEVER_FITS,
    "timed_out": ExitCode.TIMED_OUT,
    "failed": ExitCode.FAILED,
}
"""Exit code by `UserError.code`; an unknown code from a newer server is a plain failure."""

_LINES_MAX: Final = 4


class ReaderGone(Exception):
    """The program that reads our output closed it; there is nothing left to say."""


def exit_code_of(error: BaseException) -> ExitCode:
    """Return the exit code that stands for `error`."""
    match error:
        case UserError():
            return EXIT_BY_ERROR_CODE.get(error.code, ExitCode.FAILED)
        case click.UsageError():
            return ExitCode.USAGE
        case EngineError() | StoreError() | ConnectionError() | TimeoutError():
            return ExitCode.UNAVAILABLE
        case click.Abort() | KeyboardInterrupt():
            return ExitCode.INTERRUPTED
        case ReaderGone():
            return ExitCode.OK
        case _:
            return ExitCode.FAILED


def report(error: BaseException, *, is_debug: bool, has_color: bool) -> ExitCode:
    """Tell `error` on stderr in at most four lines and return its exit code."""
    code = exit_code_of(error)
    if isinstance(error, (ReaderGone, click.Abort, KeyboardInterrupt)):
        return code
    if is_debug:
        traceback.print_exception(error)
    message, hint = _words(error)
    lines = [line.rstrip() for line in message.splitlines() if line.strip()] or ["unknown error"]
    lines = lines[: _LINES_MAX - (1 if hint else 0)]
    lines[0] = f"{_label('error:', '31', has_color=has_color)} {lines[0]}"
    if hint:
        lines.append(f"{_label('hint:', '36', has_color=has_color)} {' '.join(hint.split())}")
    print(*lines, sep="\n", file=sys.stderr)  # noqa: T201
    return code


def _words(error: BaseException) -> tuple[str, str | None]:
    """Return what went wrong and what to do about it."""
    match error:
        case UserError():
            return error.message, error.hint
        case click.UsageError():
            return _usage_words(error)
        case click.ClickException():
            return error.format_message(), None
        case TercioError():
            return str(error), "run again with --debug for details"
        case PermissionError() if error.filename:
            return f"may not read or write {error.filename}", "check its owner and mode"
        case OSError() if error.filename:
            return f"{error.filename}: {(error.strerror or 'failed').lower()}", None
        case _:
            kind = type(error).__name__
            return f"{kind}: {error}", "this is a bug in tercio; run again with --debug and report"


def _usage_words(error: click.UsageError) -> tuple[str, str]:
    usage = f"see '{error.ctx.command_path} --help'" if error.ctx else "see 'tercio --help'"
    message = error.format_message()
    if isinstance(error, click.NoSuchOption):
        message = f"no such option '{error.option_name}'"
        if error.possibilities:
            names = " or ".join(f"'{name}'" for name in sorted(error.possibilities)[:3])
            usage = f"did you mean {names}?"
    elif isinstance(error, click.MissingParameter) and error.param is not None:
        is_option = error.param.param_type_name == "option"
        name = max(error.param.opts, key=len) if is_option else error.param.human_readable_name
        message = f"{name} is missing"
    if message[1:2].islower():
        message = message[:1].lower() + message[1:]
    return message.rstrip("."), usage


def _label(word: str, ansi: str, *, has_color: bool) -> str:
    return f"\x1b[1;{ansi}m{word}\x1b[0m" if has_color else word
