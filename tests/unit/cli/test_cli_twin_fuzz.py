"""The hunt from the command line: what it says, and a run with the code of another commit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tercio
from tercio.cli.twin_fuzz import counter
from tercio.twin.fuzz import Finding

GIT = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false"]


def fuzz(checkout: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the hunt with the package of a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "NO_COLOR": "1"}
    command = [sys.executable, "-m", "tercio", "twin", "fuzz", "--seeds", "1", "--jobs", "3"]
    return subprocess.run(
        [*command, *options], env=environment, cwd=checkout, capture_output=True, text=True
    )


def git(checkout: Path, *arguments: str) -> str:
    done = subprocess.run(
        [*GIT, *arguments], cwd=checkout, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A git checkout of this package."""
    root = tmp_path_factory.mktemp("checkout")
    left_out = shutil.ignore_patterns("__pycache__", "static")
    shutil.copytree(Path(tercio.__file__).parent, root / "src" / "tercio", ignore=left_out)
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "First")
    return root


def test_a_seed_is_played_with_the_code_of_its_commit(checkout: Path) -> None:
    found = json.loads(fuzz(checkout, "-o", "json").stdout)
    first = git(checkout, "rev-parse", "HEAD")
    assert first.startswith(found["commit"])
    assert not found["has_changes"]
    module = checkout / "src" / "tercio" / "twin" / "fuzz.py"
    text = module.read_text(encoding="utf-8")
    module.write_text(text.replace("TROUBLE_S: Final = 5_000.0", "TROUBLE_S: Final = 50.0"))

    changed = json.loads(fuzz(checkout, "-o", "json").stdout)
    assert changed["has_changes"]
    assert changed["entries"] != found["entries"]
    again = json.loads(fuzz(checkout, "-o", "json", "--commit", first[:10]).stdout)
    assert again["entries"] == found["entries"]
    module.write_text(text)


def test_a_commit_that_is_not_there_is_named(checkout: Path) -> None:
    done = fuzz(checkout, "--commit", "--upload-pack=x")
    assert done.returncode == 2
    assert "the checkout has no such commit" in done.stderr
    assert "git log" in done.stderr


def test_an_installed_package_has_no_commits(tmp_path: Path) -> None:
    left_out = shutil.ignore_patterns("__pycache__", "static")
    shutil.copytree(Path(tercio.__file__).parent, tmp_path / "src" / "tercio", ignore=left_out)
    done = fuzz(tmp_path, "--commit", "434faf0")
    assert done.returncode == 2
    assert "not a checkout" in done.stderr
    assert "git clone" in done.stderr
    found = json.loads(fuzz(tmp_path, "-o", "json").stdout)
    assert found["commit"] is None


def test_what_was_found_is_told_with_the_command_that_finds_it_again(checkout: Path) -> None:
    ledger = checkout / "src" / "tercio" / "core" / "ledger.py"
    kept = ledger.read_text(encoding="utf-8")
    clean = fuzz(checkout)
    assert clean.returncode == 0
    assert "seed 0: no fault in" in clean.stdout
    assert "never seen:" in clean.stdout
    broken = kept.replace("    def release(", "    def release_never(", 1)
    assert broken != kept
    ledger.write_text(broken, encoding="utf-8")
    unsaved = fuzz(checkout)
    git(checkout, "commit", "-q", "-a", "-m", "Never release")
    saved = fuzz(checkout)
    name = git(checkout, "rev-parse", "--short=12", "HEAD")
    git(checkout, "reset", "-q", "--hard", "HEAD~1")
    assert unsaved.returncode == saved.returncode == 1
    again = "again: tercio twin fuzz --seeds 1 --seed 0 --jobs 3"
    assert f"{again}\n" in unsaved.stdout
    assert f"{again} --commit {name}\n" in saved.stdout


def test_the_progress_counts_the_seeds_that_found_a_fault() -> None:
    said: list[str] = []
    tell = counter(said.append)
    for done, (seed, fault) in enumerate([(2, None), (0, "held twice"), (1, None), (3, "lost")], 1):
        tell(
            Finding(seed=seed, entries=9, journal_hash="", fault=fault, at_s=0.0, covered={}),
            done,
            1000,
        )
    assert said == [
        "1 of 1,000 seeds, 0 found a fault",
        "2 of 1,000 seeds, 1 found a fault",
        "3 of 1,000 seeds, 1 found a fault",
        "4 of 1,000 seeds, 2 found a fault",
    ]
