"""`tercio policy shadow`: another policy beside the one in force, and where they differ."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import click
import msgspec

from tercio.cli import human
from tercio.cli.output import Column, print_facts, print_table, write, write_body
from tercio.cli.session import Session
from tercio.cli.verbs import Noun, Word, pass_session
from tercio.errors import UserError
from tercio.model.shadow_views import (
    PolicyShadowView,
    ShadowDifference,
    ShadowQueue,
    ShadowWaits,
)

_FORM = click.option(
    "-o", "--output", "form", type=Word("format", ("table", "json")), default="table",
    help="For people, or the API body.",
)  # fmt: skip
_PATH: Final = "/v1/policy/shadow"
_SHOWN: Final = 10


@click.group("shadow", cls=Noun, default="show")
def shadow_group() -> None:
    """Run another policy beside the one in force, and see where they differ."""


@shadow_group.command(
    "start",
    examples="""
    tercio policy shadow start new.yaml
    tercio policy shadow start new.yaml --lag 6h
    """,
)
@click.argument("file", metavar="FILE|-", type=click.Path())
@click.option(
    "--lag",
    metavar="TIME",
    help="How far it may be behind before it guesses the run time of a job; default: 1h.",
)
@click.option(
    "--overcommit", is_flag=True, help="Allow guarantees above what the cluster has, and warn."
)
@pass_session
def start(session: Session, file: str, *, lag: str | None, overcommit: bool) -> None:
    """Begin to run the policy of a file in shadow; nothing is done by it.

    It gets the jobs, requests, ends and faults of the live server from now on, and decides by
    itself. It takes the place of one that runs, goes on after a restart of the server, and is
    ended by 'stop'.
    """
    request = {
        "file": read_policy_file(file),
        "source": "stdin" if file == "-" else file,
        "overcommit": overcommit,
        "lag": lag,
    }
    body = session.send("PUT", _PATH, msgspec.json.encode(request))
    view = msgspec.json.decode(body, type=PolicyShadowView)
    if view.error:
        raise UserError(f"the policy in shadow failed: {view.error}", code="failed")
    session.note(f"{view.source} runs in shadow; see where it differs: tercio policy shadow")


@shadow_group.command("stop", examples="tercio policy shadow stop")
@pass_session
def stop(session: Session) -> None:
    """End the policy in shadow and forget what it came to."""
    session.send("DELETE", _PATH, b"")
    session.note("no policy runs in shadow")


@shadow_group.command(
    "show",
    examples="""
    tercio policy shadow
    tercio policy shadow -o json
    """,
)
@_FORM
@pass_session
def show(session: Session, form: str) -> None:
    """Show where the policy in shadow decides differently, and what waits came to."""
    body = session.fetch(_PATH)
    if form == "json":
        write_body(body)
        return
    view = msgspec.json.decode(body, type=PolicyShadowView)
    print_facts(session, _facts(session, view))
    if view.error:
        session.warn(f"it failed: {view.error}")
        session.note("the live server is not touched; begin anew: tercio policy shadow start FILE")
    report = view.report
    if report is None:
        return
    write("")
    if not report.queues:
        write("no job has started or was evicted since")
        return
    rows = (report.total, *report.queues) if len(report.queues) > 1 else report.queues
    columns = [each for each in _QUEUES if each.field not in _SELDOM or _is_there(each.field, rows)]
    print_table(session, columns, rows)
    _differences(session, "now", report.now)
    _differences(session, "last", report.recent)
    write("")
    write("wait: mean, median and 95th percentile of jobs that started under both policies")


def _facts(session: Session, view: PolicyShadowView) -> list[tuple[str, str]]:
    report = view.report
    found = [("shadow", f"{view.source}, by {view.by}"), ("state", _state(session, view))]
    if report is None:
        return found
    now_s = session.now_s()
    found.append(
        ("since", f"{human.local_time(report.since_s)} ({human.ago(report.since_s, now_s)} ago)")
    )
    if view.note:
        found.append(("note", view.note))
    if report.guessed:
        found.append(("guessed", human.quantity(report.guessed, "run time")))
    if report.passed_over:
        found.append(("left out", f"{human.quantity(report.passed_over, 'request')} that made no "
                                  "sense there"))  # fmt: skip
    if report.live_changes:
        times = human.quantity(report.live_changes, "change")
        version = report.live_version
        found.append(("live policy", f"version {version}, {times} since it began"))
    return found


def _state(session: Session, view: PolicyShadowView) -> str:
    report = view.report
    if report is None or view.state == "failed":
        return view.state
    late_s = session.now_s() - report.as_of_s
    words = [view.state]
    if view.behind:
        words.append(f"{human.quantity(view.behind, 'entry', 'entries')} to read")
    if report.waits_for is not None and late_s > _LATE_S:
        words.append(
            f"{human.span(late_s)} behind: it started {report.waits_for} earlier, "
            "and must know how long that runs"
        )
    return ", ".join(words)


_LATE_S: Final = 10.0


def _moved(count: int, seconds: float) -> str:
    """How many jobs start earlier or later, and by how much on average."""
    return f"{count} by {human.span(seconds / count)}" if count else human.NOTHING


def _waits(waits: ShadowWaits | None) -> str:
    if waits is None:
        return human.NOTHING
    return " ".join(human.span(each) for each in (waits.mean_s, waits.p50_s, waits.p95_s))


_QUEUES: Final[tuple[Column[ShadowQueue], ...]] = (
    Column("QUEUE", "queue", lambda row: row.queue),
    Column("JOBS", "jobs", lambda row: str(row.jobs), is_right=True),
    Column("EARLIER", "earlier", lambda row: _moved(row.earlier, row.earlier_s), is_right=True),
    Column("LATER", "later", lambda row: _moved(row.later, row.later_s), is_right=True),
    Column("WAIT LIVE", "live_waits", lambda row: _waits(row.live_waits), is_right=True),
    Column("WAIT SHADOW", "shadow_waits", lambda row: _waits(row.shadow_waits), is_right=True),
    Column("ONLY LIVE", "only_live", lambda row: str(row.only_live), is_right=True, spare=2),
    Column("ONLY SHADOW", "only_shadow", lambda row: str(row.only_shadow), is_right=True, spare=2),
    Column("EVICTED LIVE", "spared", lambda row: _evicted(row.live_evictions, row.spared),
           is_right=True, spare=1),
    Column("EVICTED SHADOW", "struck", lambda row: _evicted(row.shadow_evictions, row.struck),
           is_right=True, spare=1),
    Column("REFUSED", "refused", lambda row: str(row.refused), is_right=True, spare=3),
)  # fmt: skip


_SELDOM: Final = {
    "only_live": ("only_live",),
    "only_shadow": ("only_shadow",),
    "spared": ("live_evictions", "shadow_evictions"),
    "struck": ("live_evictions", "shadow_evictions"),
    "refused": ("refused",),
}
"""Columns that are left out while all counts behind them are zero."""


def _is_there(key: str, rows: Sequence[ShadowQueue]) -> bool:
    return any(getattr(row, name) for row in rows for name in _SELDOM[key])


def _evicted(count: int, alone: int) -> str:
    """Evictions of one side, and how many of them the other would not have made."""
    return f"{count} ({alone} alone)" if alone else str(count)


_WORDS: Final = {
    "earlier": "starts earlier",
    "later": "starts later",
    "spared": "would not be evicted",
    "struck": "would be evicted",
    "refused": "has no such queue",
    "runs here only": "runs in the shadow, waits live",
    "waits here only": "waits in the shadow, runs live",
}


def _differences(session: Session, title: str, rows: tuple[ShadowDifference, ...]) -> None:
    if not rows:
        return

    def gap(row: ShadowDifference) -> str:
        if row.live_s is None or row.shadow_s is None:
            return human.NOTHING
        return human.span(abs(row.live_s - row.shadow_s))

    def at(seconds: float | None) -> str:
        return human.NOTHING if seconds is None else human.local_time(seconds)

    write("")
    columns: tuple[Column[ShadowDifference], ...] = (
        Column(title.upper(), "what", lambda row: _WORDS.get(row.what, row.what)),
        Column("JOB", "job", lambda row: row.job),
        Column("NAME", "name", lambda row: row.name, is_flexible=True),
        Column("QUEUE", "queue", lambda row: row.queue),
        Column("USER", "user", lambda row: row.user, spare=1),
        Column("BY", "by", gap, is_right=True),
        Column("LIVE", "live_s", lambda row: at(row.live_s), spare=1),
        Column("SHADOW", "shadow_s", lambda row: at(row.shadow_s), spare=1),
    )
    print_table(session, columns, rows[:_SHOWN])
    if len(rows) > _SHOWN:
        write(f"and {len(rows) - _SHOWN} more: -o json")


def read_policy_file(file: str) -> str:
    """Return the text of a policy file; `-` is stdin.

    Raises:
        UserError: `not_found`, or it is no text.
    """
    return read_text_file(file, hint="`tercio policy show` prints one", what="a YAML policy file")


def read_text_file(file: str, *, hint: str, what: str) -> str:
    """Return the text of a file; `-` is stdin. `hint` helps who has none, `what` is wanted.

    Raises:
        UserError: `not_found`, or it is no text.
    """
    if file == "-":
        return sys.stdin.read()
    try:
        with open(file, encoding="utf-8") as opened:
            return opened.read()
    except FileNotFoundError:
        raise UserError(f"there is no file {file}", code="not_found", hint=hint) from None
    except UnicodeDecodeError:
        raise UserError(f"{file} is not a text file", hint=f"give {what}") from None
