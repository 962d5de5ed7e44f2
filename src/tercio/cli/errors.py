"""Exit codes and the way an error is told: one table, at most four lines, no traceback."""

from __future__ import annotations

import difflib
import sys
import traceback
from enum import IntEnum
from typing import Final

import click

from tercio.errors import EngineError, StoreError, TercioError, UserError
from tercio.model.units import format_number


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

OPTIONS_ELSEWHERE: Final[dict[str, str]] = {
    "--device": "--gpus",
    "--devices": "--gpus",
    "--gpu": "--gpus",
    "--num-gpus": "--gpus",
    "--gpus-per-node": "--gpus",
    "--gpus-per-task": "--gpus",
    "--gres": "--gpus",
    "--accelerator": "--gpus",
    "--accelerators": "--gpus",
    "--duration": "--for",
}
"""Options of other tools, and words that come to mind, by the option that does it here."""

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
        usage = _nearest_option(error) or usage
    elif isinstance(error, click.BadParameter) and (told := _number_words(error)):
        message, usage = told
    elif isinstance(error, click.MissingParameter) and error.param is not None:
        message = f"{_name_of(error.param)} is missing"
    if message[1:2].islower():
        message = message[:1].lower() + message[1:]
    return message.rstrip("."), usage


def _name_of(param: click.Parameter) -> str:
    is_option = param.param_type_name == "option"
    return max(param.opts, key=len) if is_option else param.human_readable_name


def _nearest_option(error: click.NoSuchOption) -> str | None:
    """The option that does here what this one does elsewhere, else those that are spelt alike."""
    if error.option_name == "--version":
        return "see 'tercio version'"
    params = [] if error.ctx is None else error.ctx.command.get_params(error.ctx)
    known = [opt[2:] for param in params for opt in param.opts if opt.startswith("--")]
    meant = OPTIONS_ELSEWHERE.get(error.option_name, "")
    if meant[2:] in known:
        return f"write '{meant}'"
    # The dashes, which all have, would make any two words alike.
    word = error.option_name.lstrip("-").lower()
    near = [name for name in known if name.startswith(word)][:3]
    near = near or difflib.get_close_matches(word, known, n=3, cutoff=0.6)
    names = " or ".join(f"'--{name}'" for name in near)
    return f"did you mean {names}?" if near else None


def _number_words(error: click.BadParameter) -> tuple[str, str] | None:
    """Say of a number that is none, or out of bounds, which it is and what would do."""
    param, kind = error.param, None if error.param is None else error.param.type
    if param is None or not isinstance(kind, click.types.IntParamType | click.types.FloatParamType):
        return None
    value, _, _ = error.message.partition(" is not ")
    value = value.strip("'")
    is_whole = isinstance(kind, click.types.IntParamType)
    what, hint = ("a whole number" if is_whole else "a number"), ""
    fault = f"is not {what}"
    if isinstance(kind, click.IntRange | click.FloatRange):
        low, high = (None if n is None else format_number(n) for n in (kind.min, kind.max))
        if "not in the range" in error.message:
            fault = "is out of bounds"
            value = format_number(float(value))
        if low is not None and high is not None:
            hint = f" from {low} to {high}"
        elif low is not None:
            hint = f", at least {low}"
        elif high is not None:
            hint = f", at most {high}"
    return f"{_name_of(param)}: '{value}' {fault}", f"write {what}{hint}"


def _label(word: str, ansi: str, *, has_color: bool) -> str:
    return f"\x1b[1;{ansi}m{word}\x1b[0m" if has_color else word
