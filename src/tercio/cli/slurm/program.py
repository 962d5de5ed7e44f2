"""`python -m tercio.cli.slurm.program NAME ARGS`: the one program behind the shims."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Final

from tercio.cli.errors import ReaderGone, exit_code_of
from tercio.cli.session import Session

PROGRAMS: Final = {
    "sbatch": "tercio.cli.slurm.sbatch",
    "squeue": "tercio.cli.slurm.squeue",
    "scancel": "tercio.cli.slurm.scancel",
    "sinfo": "tercio.cli.slurm.sinfo",
    "sacct": "tercio.cli.slurm.sacct",
    "srun": "tercio.cli.slurm.srun",
}
"""The module of each program; only the one that runs is imported."""


def run(name: str, words: Sequence[str], session: Session | None = None) -> int:
    """Run one of Slurm's programs and return its exit code: as there, 1 for any fault."""
    session = session or Session()
    try:
        if any(word in ("--version", "-V") for word in words[:1]):
            from tercio import __version__

            sys.stdout.write(f"tercio {__version__} as {name}\n")
            return 0
        program: Callable[[Session, Sequence[str]], int] = import_module(PROGRAMS[name]).run
        code = program(session, words)
        sys.stdout.flush()
    except (BrokenPipeError, ReaderGone):
        # The interpreter's last flush must not fail either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        _tell(name, error, exit_code_of(error))
        return 1
    else:
        return code
    finally:
        session.close()


def _tell(name: str, error: Exception, code: int) -> None:
    import click

    message = error.format_message() if isinstance(error, click.ClickException) else str(error)
    hint = getattr(error, "hint", None)
    told = [f"{name}: error: {message}", *([f"{name}: hint: {hint}"] if hint else [])]
    sys.stderr.write("\n".join(told) + "\n")
    if code == 1 and not hint:
        sys.stderr.write(f"{name}: {type(error).__name__}\n")


def main() -> None:
    """Entry point of every shim."""
    sys.exit(run(sys.argv[1], sys.argv[2:]))


if __name__ == "__main__":
    main()
