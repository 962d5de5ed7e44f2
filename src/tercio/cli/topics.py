"""The texts of `tercio help TOPIC`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tercio.cli.errors import MEANINGS


def exit_codes() -> str:
    """Return the table of exit codes."""
    lines = [f"  {code.value:>3}  {meaning}" for code, meaning in MEANINGS.items()]
    return "Exit codes of every command:\n\n" + "\n".join(lines)


_ENVIRONMENT: Final = """\
Environment of the command line:

  TERCIO_URL            the server; else the config file, else the server on this machine
  TERCIO_TOKEN          the token to present; else the config file, else the state directory
  TERCIO_STATE_DIR      where a server on this machine keeps its state
  TERCIO_CONFIG         the config file; else /etc/tercio/config.toml, then
                        ~/.config/tercio/config.toml ('tercio config show --origin')
  TERCIO_SECTION__KEY   any setting of the config file, such as TERCIO_SERVER__PORT
  NO_COLOR              no colour; CLICOLOR_FORCE=1 colour even in a pipe; --color wins
  XDG_CACHE_HOME        where completion keeps names for a few seconds

A flag wins over the environment, the environment over the file, the file over the default.

Environment of a task:

  TERCIO_JOB, TERCIO_ATTEMPT, TERCIO_TASK     always
  TERCIO_OUTPUT_DIR                           where the job file names 'outputs'
  MASTER_ADDR, MASTER_PORT, RANK, LOCAL_RANK, WORLD_SIZE, NODE_RANK    framework: torch, torchrun
  TF_CONFIG                                   framework: tensorflow"""

_JOB_FILE: Final = """\
A job file is YAML. The smallest one:

  run: python train.py
  per_task: {devices: "H100:8"}

One with what most jobs need:

  name: llama-sft                 # default: the file's name
  queue: research/nlp             # default: the policy's default queue
  priority: 0                     # larger first, inside one queue
  tasks: 4                        # a gang of exactly 4, all or nothing; "2..8" is elastic
  per_task:
    devices: "H100:8 | A100-80GB:8"    # alternatives, best first
    cpus: 32                      # default: the policy's share per device
    memory: 256GiB
  topology: {same: rack}
  time: {limit: 8h, expected: 6h}
  framework: torchrun             # plain torch torchrun tensorflow jax mpi ray dask
  workdir: .                      # snapshotted at submit, .gitignore honoured
  env: {WANDB_MODE: offline}
  secrets: [HF_TOKEN]             # values come from your environment, or are asked for
  setup: pip install -r requirements.txt
  run: python train.py
  retry: {on: [node_failed, preempted], max: 5}

Devices: H100:8 or 8xH100; 8 is any accelerator; CPU:2; none; A100-80GB:4; 80GB..:4 is at least
80 GB; nvidia:2; H100:0.5 or L4@8GiB is a share of one card; A100/1g.10gb:2 is MIG slices.
Durations: 45s 30m 8h 1h30m 7d. Memory: 80GiB is binary, 80GB decimal.
Several documents in one file are several jobs, all accepted or none."""

_OUTPUT: Final = """\
Every command that prints data takes:

  -o table      for people: human units, relative times, cut to the terminal, never in a pipe
  -o wide       more columns
  -o json       the body of the API, byte for byte: seconds, bytes, absolute times
  -o jsonl      one row a line
  -o csv        base units and absolute times
  -o name       what other commands take as an argument, one a line
  --fields A,B  only these fields, in this order; 'labels.x' goes into objects
  --no-header   no header line

Data goes to stdout; notes, progress and errors to stderr. -q leaves out the notes.
State words carry a symbol and a colour on terminals; scripts read the plain word."""


TOPICS: Final[dict[str, Callable[[], str]]] = {
    "exit-codes": exit_codes,
    "environment": lambda: _ENVIRONMENT,
    "job-file": lambda: _JOB_FILE,
    "output": lambda: _OUTPUT,
}
"""Texts by topic."""
