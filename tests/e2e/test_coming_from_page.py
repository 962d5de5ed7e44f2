"""docs/coming-from.md: its files are written and every command of it is run, in order."""

from __future__ import annotations

import getpass
import os
import re
import shlex
import subprocess

import pytest

from .room import DEADLINE_S, ROOT, TERCIO, Room

pytestmark = pytest.mark.e2e

PAGE = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
FILES = re.findall(r"^`([^`]+)`:\n\n```\w+\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
BLOCKS = re.findall(r"^```console\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
PARTS = [(*file, block) for file, block in zip(FILES, BLOCKS[:1] + BLOCKS[2:], strict=True)]


def run(live: Room, block: str) -> str:
    """Run the commands of a block in one shell; the first that fails fails the test."""
    commands = re.findall(r"^\$ (.*)$", block, re.MULTILINE)
    assert commands
    tercio = live.path / "bin" / "tercio"
    tercio.parent.mkdir(exist_ok=True)
    tercio.write_text(f'#!/bin/sh\nexec {shlex.join(TERCIO)} "$@"\n', encoding="utf-8")
    tercio.chmod(0o755)
    path = f"{tercio.parent}{os.pathsep}{live.env['PATH']}"
    done = subprocess.run(
        ["bash", "-euxc", "\n".join(commands)], cwd=live.work, capture_output=True, text=True,
        env={**live.env, "PATH": path, "USER": getpass.getuser()}, timeout=DEADLINE_S,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_has_its_parts():
    assert [name for name, _, _ in PARTS] == [
        "train.sbatch", "task.yaml", ".dstack.yml", "frames.yaml",
    ]  # fmt: skip


def test_every_command_of_the_page_runs(live: Room) -> None:
    told = []
    for name, text, block in PARTS:
        (live.work / name).write_text(text, encoding="utf-8")
        told.append(run(live, block))
    assert sorted(re.findall(r"rank \d of 4", told[0])) == [f"rank {n} of 4" for n in range(4)]
    assert "shard 1 of 2, 4 in all" in told[1]
    assert "hello from 1 of 2" in told[2]
    assert "array: 0-1" in told[3]
    shims = run(live, BLOCKS[1])
    assert "Submitted batch job " in shims
    assert not list((live.path / "slurm-names").iterdir())


def test_every_field_of_the_tables_is_one_that_the_readers_know():
    """A table that names a field that nobody writes would mislead."""
    from tercio.formats.foreign.sbatch_options import KNOWN

    section = PAGE.partition("## From SkyPilot")[0]
    named = set(re.findall(r"`--([a-z-]+)(?:=[^`]*)?`", section.partition("<a id")[0]))
    assert named - {"env"} <= KNOWN | {"partition"}
