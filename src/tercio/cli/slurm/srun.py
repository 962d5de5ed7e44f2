"""`srun`: run a command as a job and wait for it; inside a job, as a step of this node."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from typing import Final

from tercio.cli.following import wait_for_end, write_line
from tercio.cli.session import Session
from tercio.cli.slurm.submitting import compose, read_command, request
from tercio.cli.slurm.words import shown_id
from tercio.errors import UserError
from tercio.formats.foreign.sbatch_options import SHORT, VALUED
from tercio.formats.foreign.sbatch_script import srun_function

_IGNORED_FLAGS: Final = frozenset(
    {"--label", "-l", "--unbuffered", "-u", "--overlap", "--exact", "--exclusive=user", "-X",
     "--disable-status", "--quit-on-interrupt", "-K", "--kill-on-bad-exit", "--no-shell"}
)  # fmt: skip
_IGNORED_VALUED: Final = ("--mpi", "--cpu-bind", "--jobid", "--slurmd-debug", "--bcast", "--wait")


def run(session: Session, words: Sequence[str]) -> int:
    """Run a command and return its exit code."""
    if "TERCIO_TASK_DIR" in session.environment:
        return _step(words)
    own, command = _parted(words)
    has_label = any(word in ("-l", "--label") for word in words[: len(words) - len(command)])
    ordered = read_command(own)
    if not command:
        raise UserError("No command given to execute", hint="write srun -n2 hostname")
    text = f"#!/bin/bash\nsrun {shlex.join(command)}\n"
    composed, options = compose(
        text, options=ordered.options, arguments=(), environment={}, directory=os.getcwd()
    )
    source = os.path.basename(command[0])
    wanted = request(composed, options, source=source, environment=session.environment)
    (job,) = session.client.submit(wanted).ids
    try:
        for line in session.client.logs(job, is_following=True):
            write_line(session, line, has_prefix=has_label)
        (view,) = wait_for_end(session, [job])
    except KeyboardInterrupt:
        session.client.cancel(job, reason="srun was interrupted")
        raise
    if view.state == "succeeded":
        return 0
    sys.stdout.flush()
    sys.stderr.write(f"srun: error: job {shown_id(job)}: {view.message or view.state}\n")
    return view.exit_code or 1


def _parted(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the options that count here, and the command."""
    own: list[str] = []
    queue = list(words)
    while queue and queue[0].startswith("-") and queue[0] != "--":
        word = queue.pop(0)
        name = word.partition("=")[0]
        if name in ("--pty", "--multi-prog"):
            hint = "submit the job and use 'tercio exec JOB -- bash'"
            raise UserError(f"{name} is not taken here", code="unsupported", hint=hint)
        if name in _IGNORED_FLAGS or name in _IGNORED_VALUED:
            if name in _IGNORED_VALUED and "=" not in word and queue:
                queue.pop(0)
            continue
        own.append(word)
        long_name = word[2:] if word.startswith("--") else SHORT.get(word[1:], "")
        if long_name in VALUED and queue:
            own.append(queue.pop(0))
    return own, queue[1:] if queue[:1] == ["--"] else queue


def _step(words: Sequence[str]) -> int:
    """Start the tasks of this node, as the function of a batch script does."""
    sys.stdout.flush()
    os.execvp("bash", ["bash", "-c", f'{srun_function()}srun "$@"', "srun", *words])
