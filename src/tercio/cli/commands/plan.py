"""`tercio plan`."""

from __future__ import annotations

from typing import Final

import click
import msgspec

from tercio.cli import details, human
from tercio.cli.errors import ExitCode
from tercio.cli.output import Column, Listing, Output, output_options, show_one, state_text, write
from tercio.cli.request import Wish, build_request, job_options
from tercio.cli.session import Session
from tercio.cli.verbs import Verb, pass_session
from tercio.client import JobRequest
from tercio.model.views import PlanView

_CODES: Final = {"now": ExitCode.OK, "later": ExitCode.INFEASIBLE, "never": ExitCode.NEVER_FITS}
_WORDS: Final = {
    "now": "it would start now",
    "never": "it can never start on the cluster as it is",
}

LISTING: Listing[PlanView] = Listing(
    (
        Column("OUTCOME", "outcome", lambda view: view.outcome),
        Column("REASON", "decision.reason", lambda view: view.decision.reason),
        Column("MESSAGE", "decision.message", lambda v: v.decision.message, is_flexible=True),
    ),
    PlanView,
    lambda view: view.outcome,
    "no plan",
)


@click.command(
    cls=Verb,
    takes_argv=True,
    examples="""
    tercio plan job.yaml
    tercio plan --gpus H100:8 --nodes 2 -- python train.py
    """,
)
@job_options
@output_options
@pass_session
def command(session: Session, *, wish: Wish, output: Output) -> int:
    """Show what would happen to a job, without submitting it.

    The real scheduler decides on the cluster as it is now. Exit code 0: it would start now;
    7: it would wait; 8: it can never fit.
    """
    return show_plan(session, build_request(session, wish, is_plan=True), output)


def show_plan(session: Session, request: JobRequest, output: Output) -> int:
    """Ask for the plan, print it and return its exit code."""
    return show_plan_body(session, session.post("/v1/plan", msgspec.json.encode(request)), output)


def show_plan_body(session: Session, body: bytes, output: Output, *, head: str = "") -> int:
    """Print a plan that the server sent and return its exit code."""
    view = msgspec.json.decode(body, type=PlanView)
    for warning in view.warnings:
        session.warn(warning)

    def tell(plan: PlanView) -> None:
        begin = f"{session.paint(head, 'bold')}  " if head else ""
        words = _words(session, plan)
        write(f"{begin}{state_text(session, plan.outcome)}: {words}")
        details.decision(session, plan.decision, evicts=plan.evicts)
        if plan.sized is not None:
            details.sized(session, plan.sized)

    show_one(session, output, LISTING, body, tell)
    return _CODES.get(view.outcome, ExitCode.FAILED)


def _words(session: Session, plan: PlanView) -> str:
    """Say the outcome; of one that is later, when, and what would be stopped for it."""
    start = plan.decision.start
    if plan.outcome != "later":
        return _WORDS.get(plan.outcome, plan.outcome)
    if plan.evicts:
        count = human.quantity(len(plan.evicts), "job")
        return f"it would start after {count} stopped for it"
    if start is None:
        return "it would wait; nothing says until when"
    return f"it would wait, and start {human.until(start.at_s, session.now_s())}"
