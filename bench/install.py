"""What `pip install tercio` puts on a machine: megabytes, packages, and whether it then works."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import NamedTuple

from bench.table import Row

ROOT = Path(__file__).parents[1]
BAR_MB = 140


class Installed(NamedTuple):
    """Facts of a fresh environment.

    Attributes:
        grown_bytes: what the wheel and its dependencies added to site-packages.
        packages: how many distributions that are.
        missing: files of the package's source that the wheel lacks.
        wheel_says, sdist_says: what `tercio version` printed after installing each.
    """

    grown_bytes: int
    packages: int
    missing: list[str]
    wheel_says: str
    sdist_says: str


class Environment:
    """A fresh virtual environment without a compiler in reach."""

    def __init__(self, directory: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
        self.bin = directory / "bin"
        (self.site,) = directory.glob("lib/python3*/site-packages")

    def pip(self, *arguments: str) -> None:
        """Run pip; a build of anything in C would fail."""
        environment = {**os.environ, "CC": "false", "CXX": "false", "PYTHONPATH": ""}
        command = [str(self.bin / "python"), "-m", "pip", "--disable-pip-version-check", "-q"]
        done = subprocess.run(
            [*command, *arguments], env=environment, cwd=self.bin, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise RuntimeError(f"pip {' '.join(arguments)}: {done.stderr[-2000:]}")

    def size_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.site.rglob("*") if path.is_file())

    def packages(self) -> int:
        return len(list(self.site.glob("*.dist-info")))

    def says(self) -> str:
        """Return what `tercio version` prints, away from the source."""
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        done = subprocess.run(
            [str(self.bin / "tercio"), "version"], env=environment, cwd=self.bin,
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        return done.stdout.strip()


def built(scratch: Path) -> tuple[Path, Path]:
    """Build the wheel and the sdist with the declared build system."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    builder = Environment(scratch / "builder")
    builder.pip("install", *wanted)
    subprocess.run(
        [str(builder.bin / "hatchling"), "build", "-d", str(scratch / "dist")],
        cwd=ROOT, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": ""},
    )  # fmt: skip
    (wheel,) = (scratch / "dist").glob("*.whl")
    (sdist,) = (scratch / "dist").glob("*.tar.gz")
    return wheel, sdist


def lacking(wheel: Path) -> list[str]:
    """Return the files of the package's source that a wheel does not hold."""
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    source = ROOT / "src"
    wanted = [
        str(path.relative_to(source))
        for path in sorted((source / "tercio").rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    ]
    return [name for name in wanted if name not in held]


def measure() -> Installed:
    """Build, install into a fresh environment, and look at it. Takes half a minute."""
    with tempfile.TemporaryDirectory(prefix="tercio-install-") as directory:
        scratch = Path(directory)
        wheel, sdist = built(scratch)
        fresh = Environment(scratch / "fresh")
        before_bytes, before = fresh.size_bytes(), fresh.packages()
        constraints = str(ROOT / "constraints.txt")
        fresh.pip("install", "--only-binary", ":all:", "-c", constraints, str(wheel))
        grown_bytes = fresh.size_bytes() - before_bytes
        packages = fresh.packages() - before
        wheel_says = fresh.says()
        fresh.pip("uninstall", "-y", "tercio")
        fresh.pip("install", "--no-deps", str(sdist))
        return Installed(grown_bytes, packages, lacking(wheel), wheel_says, fresh.says())


def tables() -> list[tuple[str, list[Row], str]]:
    found = measure()
    rows = [
        Row(
            "`pip install tercio`, no extras: site-packages grows by",
            f"{found.grown_bytes / 1e6:.0f} MB in {found.packages} packages",
            f"{BAR_MB} MB",
            "dstack 160 (server 268), Ray 384, SkyPilot 460",
        ),
    ]
    return [("Installation", rows, "From the built wheel, wheels only, byte code included.")]
