"""What `doctor` looks at. Each check answers ok, warn or fail, with a fix for the last two."""

from __future__ import annotations

import os
import platform
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from typing import Final, Literal

import msgspec

from tercio import __version__
from tercio.cli import human
from tercio.cli.local_server import is_alive, read_server_file, state_dir_of
from tercio.cli.session import Session
from tercio.errors import TercioError, UserError
from tercio.model.units import format_memory
from tercio.model.views import ServerView

_PYTHON_MIN: Final = (3, 11)
_DISK_WARN_BYTES: Final = 2 * 1024**3
_DISK_FAIL_BYTES: Final = 200 * 1024**2
_CLOCK_WARN_S: Final = 2.0
_CLOCK_FAIL_S: Final = 60.0
_NOTE_FIX: Final = "nothing, unless a job relies on it"


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One finding: what was looked at, how it is, what was found, what mends it."""

    name: str
    status: Literal["ok", "warn", "fail"]
    text: str
    fix: str = ""


def run_checks(session: Session) -> list[Check]:
    """Run every check; one that breaks is a failed check, not the end of the others."""
    found: list[Check] = []
    for name, check in (
        ("python", _python),
        ("config", _config),
        ("state dir", _state_dir),
        ("disk", _disk),
        ("server", _server),
    ):
        found.extend(_guarded(name, check, session))
    return found


def _guarded(
    name: str, check: Callable[[Session], Iterator[Check]], session: Session
) -> Iterator[Check]:
    try:
        yield from check(session)
    except UserError as error:
        yield Check(name=name, status="fail", text=error.message, fix=error.hint or "")
    except (TercioError, OSError) as error:
        yield Check(name=name, status="fail", text=str(error), fix="see --debug")


def _python(_session: Session) -> Iterator[Check]:
    version = platform.python_version()
    if sys.version_info[:2] < _PYTHON_MIN:
        fix = "install Tercio with Python 3.11 or newer"
        yield Check(name="python", status="fail", text=f"Python {version}", fix=fix)
    else:
        yield Check(name="python", status="ok", text=f"Python {version}, tercio {__version__}")


def _config(session: Session) -> Iterator[Check]:
    from tercio.config import load, search_paths

    config, _ = load(environ=session.environment)
    if os.geteuid() == 0 and config.local.enabled and not config.local.run_as:
        text = "root runs no jobs as itself, and local.run_as names no other user"
        fix = "set TERCIO_LOCAL__RUN_AS to an unprivileged user, or run the server as one"
        yield Check(name="jobs' user", status="warn", text=text, fix=fix)
    read = [str(path) for path in search_paths(session.environment) if path.exists()]
    text = f"read from {', '.join(read)}" if read else "defaults; there is no file"
    yield Check(name="config", status="ok", text=text)


def _state_dir(session: Session) -> Iterator[Check]:
    directory = state_dir_of(session, None)
    name = "state dir"
    if not os.path.isdir(directory):
        fix = "'tercio up' makes it; only machines that run a server need one"
        yield Check(name=name, status="warn", text=f"{directory} is not there", fix=fix)
        return
    mode = stat.S_IMODE(os.stat(directory).st_mode)
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        fix = f"chown it to you, or set TERCIO_STATE_DIR: ls -ld {directory}"
        yield Check(name=name, status="fail", text=f"{directory} is not yours to write", fix=fix)
    elif mode & 0o022:
        fix = f"chmod go-w {directory}"
        yield Check(name=name, status="fail", text=f"{directory}: others may write", fix=fix)
    else:
        yield Check(name=name, status="ok", text=directory)
    token = os.path.join(directory, "token")
    if os.path.exists(token) and stat.S_IMODE(os.stat(token).st_mode) & 0o077:
        text = f"{token} can be read by others"
        fix = f"chmod 600 {token}, then create new tokens and revoke the old"
        yield Check(name="token file", status="fail", text=text, fix=fix)
    found = read_server_file(directory)
    if found is not None and not is_alive(found.pid):
        text = f"server.json names process {found.pid}, which is gone"
        yield Check(name=name, status="warn", text=text, fix="'tercio up' starts it again")


def _disk(session: Session) -> Iterator[Check]:
    directory = state_dir_of(session, None)
    while not os.path.isdir(directory):
        directory = os.path.dirname(directory)
    free_bytes = shutil.disk_usage(directory).free
    text = f"{format_memory(free_bytes)} free at {directory}"
    fix = "make room: the journal, logs and work directories live there"
    if free_bytes < _DISK_FAIL_BYTES:
        yield Check(name="disk", status="fail", text=text, fix=fix)
    elif free_bytes < _DISK_WARN_BYTES:
        yield Check(name="disk", status="warn", text=text, fix=fix)
    else:
        yield Check(name="disk", status="ok", text=text)


def _server(session: Session) -> Iterator[Check]:
    client = session.client
    health = client.health()
    yield Check(
        name="server", status="ok", text=f"{client.address.url} answers, tercio {health.version}"
    )
    if health.version != __version__:
        text = f"this is tercio {__version__}, the server {health.version}"
        yield Check(name="version", status="warn", text=text, fix="install the same version")
    try:
        view = client.server()
    except UserError as error:
        fix = error.hint or "set TERCIO_TOKEN, or --token-file"
        yield Check(name="token", status="fail", text=error.message, fix=fix)
        return
    yield Check(name="token", status="ok", text="accepted")
    yield _clock(view, session.now_s())
    yield from _sites(view)


def _clock(view: ServerView, now_s: float) -> Check:
    skew_s = abs(view.now_s - now_s)
    text = f"the server's clock differs by {human.span(skew_s)}"
    fix = "let both machines keep time by NTP"
    if skew_s > _CLOCK_FAIL_S:
        return Check(name="clock", status="fail", text=text, fix=fix)
    if skew_s > _CLOCK_WARN_S:
        return Check(name="clock", status="warn", text=text, fix=fix)
    return Check(name="clock", status="ok", text="agrees with the server's")


def _sites(view: ServerView) -> Iterator[Check]:
    nodes = human.quantity(view.nodes, "node")
    if view.sites and view.nodes:
        text = f"{', '.join(view.sites)}: {nodes}"
        yield Check(name="engines", status="ok", text=text)
    else:
        text = f"{', '.join(view.sites) or 'none'}: {nodes}"
        fix = "look at the server's log; 'tercio up' on a machine runs tasks on it"
        yield Check(name="engines", status="warn", text=text, fix=fix)
    for note in dict.fromkeys(view.notes):
        subject, _, rest = note.partition(": ")
        if subject == "prices":
            yield Check(name=subject, status="warn", text=rest, fix="tercio health prices")
        else:
            yield Check(name="engines", status="warn", text=note, fix=_NOTE_FIX)
