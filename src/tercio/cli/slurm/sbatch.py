"""`sbatch`: submit a batch script."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence

from tercio.cli.following import wait_for_end
from tercio.cli.output import write
from tercio.cli.session import Session
from tercio.cli.slurm.columns import instant
from tercio.cli.slurm.submitting import Ordered, compose, read_command, request
from tercio.cli.slurm.words import shown_id
from tercio.client import JobRequest
from tercio.errors import UserError


def run(session: Session, words: Sequence[str]) -> int:
    """Submit; with --wait the code is the job's, with --test-only nothing is submitted."""
    ordered = read_command(words)
    text, source, arguments = _script(ordered)
    composed, options = compose(
        text, options=ordered.options, arguments=arguments, environment=session.environment,
        directory=os.getcwd(),
    )  # fmt: skip
    wanted = request(composed, options, source=source, environment=session.environment)
    if "test-only" in ordered.own:
        return _test(session, wanted)
    answer = session.client.submit(wanted)
    if "quiet" not in ordered.own:
        for warning in answer.warnings:
            sys.stderr.write(f"sbatch: note: {re.sub(r'^line [0-9]+: ', '', warning)}\n")
    (job,) = answer.ids
    number = shown_id(job)
    write(number if "parsable" in ordered.own else f"Submitted batch job {number}")
    if "wait" not in ordered.own:
        return 0
    sys.stdout.flush()
    (view,) = wait_for_end(session, [job])
    return 0 if view.state == "succeeded" else view.exit_code or 1


def _script(ordered: Ordered) -> tuple[str, str, list[str]]:
    if "wrap" in ordered.own:
        if ordered.rest:
            raise UserError("Script arguments are not permitted with --wrap", hint="remove them")
        return f"#!/bin/sh\n{ordered.own['wrap']}\n", "wrap", []
    if not ordered.rest:
        return sys.stdin.read(), "sbatch", []
    path, *arguments = ordered.rest
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise UserError(f"Unable to open file {path}: {reason}", code="not_found") from None
    if not text.startswith("#!"):
        raise UserError(
            "This does not look like a batch script. The first line must start with #! "
            "followed by the path to an interpreter.", hint="write #!/bin/bash as its first line"
        )  # fmt: skip
    return text, os.path.basename(path), arguments


def _test(session: Session, wanted: JobRequest) -> int:
    plan = session.client.plan(wanted)
    if plan.outcome == "never":
        raise UserError(f"allocation failure: {plan.decision.message}", code="never_fits")
    start = plan.decision.start
    at = instant(start.at_s if start else session.now_s() if plan.outcome == "now" else None, "N/A")
    nodes = ",".join(plan.decision.nodes) or "nodes to be chosen"
    sys.stderr.write(f"sbatch: Job would start at {at} on {nodes}\n")
    return 0
