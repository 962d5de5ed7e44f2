"""From what people type to what the API takes: `job/ID`, ids, job names, nodes and queues."""

from __future__ import annotations

import re
from typing import Final

from tercio.cli.session import Session
from tercio.errors import UserError, did_you_mean
from tercio.model.job import TERMINAL_JOB_STATES
from tercio.model.views import JobView

KINDS: Final = ("job", "node", "queue")
_JOB_ID: Final = re.compile(r"job-[0-9a-hjkmnp-tv-z]{5,}(\.\d+)?")
_ENDED: Final = frozenset(str(state) for state in TERMINAL_JOB_STATES)


def split_kind(text: str) -> tuple[str | None, str]:
    """Split `node/n1` into kind and name; the kind is None where none is written.

    A queue path has slashes too, so only the words of `KINDS` count as one.
    """
    kind, slash, name = text.partition("/")
    if slash and name and kind in KINDS:
        return kind, name
    return None, text


def find_job(session: Session, text: str) -> str:
    """Return the id of the job that `text` means: an id, `job/ID`, or the name of a job.

    A name stands for the one job of that name that has not ended, else for its newest one.

    Raises:
        UserError: `not_found` with the nearest names, `conflict` when several jobs live.
    """
    kind, name = split_kind(text)
    if kind not in (None, "job"):
        raise UserError(f"'{text}' is not a job", hint="write its id or its name")
    if _JOB_ID.fullmatch(name):
        return name
    ids = jobs_named(session, name)
    if not ids:
        raise _no_job(session, name)
    if len(ids) > 1:
        raise UserError(
            f"{len(ids)} jobs are called '{name}': {', '.join(ids[:5])}",
            code="conflict",
            hint="use the id",
        )
    return ids[0]


def jobs_named(session: Session, name: str) -> list[str]:
    """Return the ids of the living jobs of a name, else the newest ended one, newest first.

    The elements of an array bear its name too; the name means the array.
    """
    living = [job.id for job in session.client.every_job() if _is_called(job, name)]
    if living:
        return living
    every = session.client.every_job(is_all=True)
    newest = next((job.id for job in every if _is_called(job, name)), None)
    return [] if newest is None else [newest]


def _is_called(job: JobView, name: str) -> bool:
    return job.name == name and "." not in job.id


def find_object(session: Session, text: str) -> tuple[str, str]:
    """Return kind and name of the job, node or queue that `text` means.

    Raises:
        UserError: `not_found` with the nearest names, `conflict` when two kinds match.
    """
    kind, name = split_kind(text)
    if kind == "job" or _JOB_ID.fullmatch(name):
        return "job", find_job(session, name)
    if kind is not None:
        return kind, name
    client = session.client
    nodes = [node.name for node in client.every_node()]
    queues = [queue.path for queue in client.every_queue()]
    jobs = jobs_named(session, name)
    found = [("job", job) for job in jobs]
    found += [(kind, name) for kind, known in (("node", nodes), ("queue", queues)) if name in known]
    if not found:
        word, slash, _ = name.partition("/")
        near_kind = did_you_mean(word, KINDS, limit=1) if slash else None
        words = [*(job.name for job in client.every_job()), *nodes, *queues]
        raise UserError(
            f"no job, node or queue is called '{name}'",
            code="not_found",
            hint=did_you_mean(name, words)
            or near_kind
            or "see 'tercio ps', 'tercio node', 'tercio queue'",
        )
    if len(found) > 1:
        raise UserError(
            f"'{name}' means {len(found)} things",
            code="conflict",
            hint="write " + " or ".join(f"{kind}/{one}" for kind, one in found[:4]),
        )
    return found[0]


def suggest(error: UserError, kind: str, name: str, known: list[str]) -> UserError:
    """Return `error` with the nearest known name as its hint, when it is a `not_found`."""
    if error.code != "not_found":
        return error
    hint = did_you_mean(name, known) or error.hint or f"see 'tercio {kind} list'"
    return UserError(f"no {kind} is called '{name}'", code="not_found", hint=hint)


def _no_job(session: Session, name: str) -> UserError:
    words = [word for job in session.client.every_job(is_all=True) for word in (job.name, job.id)]
    hint = did_you_mean(name, words) or "see 'tercio ps --all'"
    return UserError(f"no job is called '{name}'", code="not_found", hint=hint)


def has_ended(state: str) -> bool:
    """Whether a job in this state will not change any more."""
    return state in _ENDED
