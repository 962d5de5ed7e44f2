"""`tercio shims`: a directory with `sbatch`, `squeue` and the like, which ask Tercio."""

from __future__ import annotations

import os
import shlex
import sys

import click

from tercio.cli.output import write
from tercio.cli.session import Session
from tercio.cli.slurm.program import PROGRAMS
from tercio.cli.verbs import Verb, pass_session
from tercio.errors import UserError

_MARK = "# Written by tercio shims; the option --remove takes it away."


@click.command(
    cls=Verb,
    examples="""
    tercio shims ~/.local/tercio-slurm
    export PATH=~/.local/tercio-slurm:$PATH; sbatch train.sbatch
    tercio shims ~/.local/tercio-slurm --remove
    """,
)
@click.argument("directory", metavar="DIR", type=click.Path())
@click.option("--remove", "is_removing", is_flag=True, help="Remove the programs from DIR again.")
@pass_session
def command(session: Session, directory: str, *, is_removing: bool) -> None:
    """Write the programs sbatch, squeue, scancel, sinfo, sacct and srun into DIR, for PATH.

    They take Slurm's common options and work on every site. Real Slurm programs are left alone:
    a file that was not written by this command is never replaced.
    """
    folder = os.path.abspath(os.path.expanduser(directory))
    os.makedirs(folder, exist_ok=True)
    paths = [os.path.join(folder, name) for name in PROGRAMS]
    for path in paths:
        if os.path.lexists(path) and not _is_ours(path):
            hint = "give a directory of its own"
            raise UserError(f"{path} is another program", code="conflict", hint=hint)
    for name, path in zip(PROGRAMS, paths, strict=True):
        if os.path.lexists(path):
            os.unlink(path)
        if not is_removing:
            _write(path, name)
            write(path)
    if not is_removing:
        session.note(f"next: export PATH={shlex.quote(folder)}:$PATH")


def _write(path: str, name: str) -> None:
    # -P keeps the current directory, where anything may lie, out of the import path.
    words = [sys.executable, "-P", "-m", "tercio.cli.slurm.program", name]
    with open(path, "x", encoding="utf-8") as file:
        file.write(f'#!/bin/sh\n{_MARK}\nexec {shlex.join(words)} "$@"\n')
    os.chmod(path, 0o755)


def _is_ours(path: str) -> bool:
    try:
        with open(path, encoding="utf-8") as file:
            return _MARK in file.read(400)
    except (OSError, UnicodeDecodeError):
        return False
