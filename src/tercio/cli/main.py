"""The `tercio` command: the table of its commands, and the one place where errors end.

A new command is a module `cli/commands/<name>.py` with a `command`, and one line in `SECTIONS`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

import click

from tercio.cli.errors import ReaderGone, report
from tercio.cli.session import Session
from tercio.cli.verbs import GLOBAL_OPTIONS, Root

SECTIONS: Final[dict[str, dict[str, str]]] = {
    "Run work": {
        "submit": "Submit a job from a file or a command line.",
        "plan": "Show what would happen to a job, without submitting it.",
        "logs": "Show the log of a job.",
        "wait": "Wait until jobs have ended.",
        "exec": "Run a command inside a running task.",
        "cancel": "Stop jobs for good.",
        "hold": "Keep waiting jobs from starting.",
        "release": "Let held jobs start again.",
        "requeue": "Stop jobs and run them again from the queue.",
        "suspend": "Pause running jobs.",
        "resume": "Let paused jobs go on.",
    },
    "See": {
        "ps": "List jobs: what runs, what waits and why.",
        "show": "Show one job, node or queue.",
        "explain": "Say why a job waits or was placed where it is.",
        "story": "Tell everything that happened to a job or node.",
        "top": "Watch devices, queues and jobs.",
        "events": "Show what changed, from the journal.",
        "usage": "Sum device hours by user or queue.",
        "report": "Report useful and wasted device time, energy and cost.",
    },
    "Run the cluster": {
        "node": "List, show, cordon and drain nodes.",
        "health": "Show, plan and set what is done about faults.",
        "queue": "List, show and change queues; the tree of shares.",
        "policy": "Check, plan, show and replace the policy.",
        "topo": "Show free capacity and the largest gangs that fit.",
        "reserve": "Keep capacity for a queue or a user at a time.",
        "site": "Add, list, check and remove clusters.",
        "slurm": "Switch nodes on and off for Slurm (ResumeProgram).",
        "token": "List, create and revoke tokens.",
        "snapshot": "Save queue and nodes, to ask the twin what happens next.",
        "backup": "Write the journal to a file.",
        "restore": "Start a state directory from a backup.",
    },
    "Without a server": {
        "size": "Say how many GPUs a model needs, how long and how much.",
        "convert": "Turn a job file into another tool's, and say what is lost.",
        "check": "Check this node's GPUs, links and disks; for prologs too.",
        "classify": "Find GPU faults in kernel, NCCL and training logs.",
        "twin": "Replay recorded work in virtual time; hunt for own faults.",
    },
    "Server and setup": {
        "up": "Start the server on this machine.",
        "agent": "Watch this node and tell the server and Prometheus.",
        "down": "Stop the server on this machine.",
        "demo": "Try everything on a simulated cluster of 64 GPUs.",
        "web": "Open the web page, signed in.",
        "doctor": "Check this installation and say how to mend it.",
        "config": "Show the configuration and where it comes from.",
        "shims": "Write sbatch, squeue and the like, over Tercio, for PATH.",
        "completion": "Print the completion script of a shell.",
        "version": "Print the version.",
        "help": "Explain exit codes, environment, job file or output.",
    },
}
"""Every command by section, with the line that `tercio --help` shows. Add new ones here."""


OTHER_WORDS: Final = {
    "status": "'tercio ps' lists jobs, 'tercio top' shows all of it, 'tercio doctor' the server",
    "jobs": "'tercio ps' lists jobs",
    "squeue": "'tercio ps' lists jobs; 'tercio shims' makes squeue and the like",
    "sinfo": "'tercio node list' lists nodes, 'tercio topo' what is free",
    "sbatch": "'tercio submit FILE' takes sbatch files; 'tercio shims' makes sbatch and the like",
    "run": "'tercio submit FILE', or 'tercio submit --gpus 1 -- COMMAND'",
    "launch": "'tercio submit FILE', or 'tercio submit --gpus 1 -- COMMAND'",
    "start": "'tercio up' starts the server, 'tercio submit' a job",
    "stop": "'tercio cancel' stops a job, 'tercio down' the server",
    "kill": "'tercio cancel' stops a job",
    "delete": "'tercio cancel' stops a job",
    "log": "'tercio logs JOB'",
    "ui": "'tercio web' prints a link to the web page",
    "gpus": "'tercio topo' shows free devices, 'tercio node list' all of them",
    "prices": "'tercio health prices'",
}
"""What people who know other tools type, and where it is here."""


@click.group(
    cls=Root,
    sections=SECTIONS,
    other_words=OTHER_WORDS,
    package="tercio.cli.commands",
    params=list(GLOBAL_OPTIONS),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="First time? 'tercio demo' needs no GPU. Then: 'tercio help job-file'.",
)
def cli() -> None:
    """Tercio: size, queue, place, run and watch GPU jobs on any cluster."""


def run(argv: Sequence[str], session: Session | None = None) -> int:
    """Run one command line and return its exit code; errors are told on stderr."""
    session = session or Session()
    try:
        answer = cli.main(args=list(argv), prog_name="tercio", standalone_mode=False, obj=session)
    except Exception as error:
        if isinstance(error, ReaderGone):
            _drop_stdout()
        return int(
            report(error, is_debug=session.is_debug, has_color=session.has_color(sys.stderr))
        )
    finally:
        session.close()
    return int(answer) if isinstance(answer, int) else 0


def main() -> None:
    """Entry point of the `tercio` program."""
    sys.exit(run(sys.argv[1:]))


def _drop_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush cannot fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
