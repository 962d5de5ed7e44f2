"""The bundle itself: its size, its lock, its reducer, and the wheel that carries it."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tercio.web import STATIC
from tercio.web.pages import VIEWS

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
UI = ROOT / "ui"
SCRIPT_BYTES_MAX = 60_000
ALL_BYTES_MAX = 100_000


def test_the_first_load_is_small() -> None:
    """What the document names is read first; charts and sizing when they are first shown."""
    packed = {p.name: len(gzip.compress(p.read_bytes(), 9)) for p in STATIC.glob("assets/*.js")}
    text = (STATIC / "index.html").read_text(encoding="utf-8")
    first = [size for name, size in packed.items() if name in text]
    assert first
    assert sum(first) <= SCRIPT_BYTES_MAX, packed
    assert sum(packed.values()) <= ALL_BYTES_MAX, packed


def test_the_document_has_nothing_inline_and_nothing_foreign() -> None:
    text = (STATIC / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script(?![^>]*\bsrc=)", text) == []
    assert "<style" not in text
    assert re.findall(r'(?:src|href)="(?!\./|/")', text) == []
    for path in STATIC.glob("assets/*.css"):
        assert "url(http" not in path.read_text(encoding="utf-8")


def test_the_lock_names_versions_and_no_host() -> None:
    lock = json.loads((UI / "package-lock.json").read_text(encoding="utf-8"))
    assert [name for name, each in lock["packages"].items() if "resolved" in each] == []
    wanted = json.loads((UI / "package.json").read_text(encoding="utf-8"))
    versions = {**wanted["dependencies"], **wanted["devDependencies"]}
    assert [name for name, version in versions.items() if not version[0].isdigit()] == []


def test_the_server_serves_the_views_that_the_page_has() -> None:
    text = (UI / "src" / "views.ts").read_text(encoding="utf-8")
    paths = {path for path in re.findall(r'path: "/(\w*)"', text) if path}
    assert paths | {"signin"} == set(VIEWS)


def test_the_reducer_and_the_formats() -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["npm", "test", "--silent"], cwd=UI, env={**os.environ, "PATH": path},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


def test_a_wheel_carries_the_page_and_needs_no_node(tmp_path: Path) -> None:
    """Built and installed without Node on PATH; the page is served from the installed files."""
    bare = {"PATH": _without_node(tmp_path)}
    assert shutil.which("npm", path=bare["PATH"]) is None
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation",
         "--disable-pip-version-check", "-w", str(tmp_path / "dist"), str(ROOT)],
        check=True, capture_output=True, env={**os.environ, **bare},
    )  # fmt: skip
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    target = tmp_path / "installed"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index",
         "--disable-pip-version-check", "--target", str(target), str(wheel)],
        check=True, capture_output=True, env={**os.environ, **bare},
    )  # fmt: skip
    built = {p.relative_to(STATIC).as_posix(): p.read_bytes() for p in _files(STATIC)}
    held = target / "tercio" / "web" / "static"
    assert {p.relative_to(held).as_posix(): p.read_bytes() for p in _files(held)} == built
    said = subprocess.run(
        [sys.executable, "-c", "import tercio.web as w; print(w.is_built(), w.__file__)"],
        env={**os.environ, **bare, "PYTHONPATH": str(target)}, cwd=tmp_path,
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert said.startswith(f"True {target}")


def _files(directory: Path) -> list[Path]:
    return [path for path in sorted(directory.rglob("*")) if path.is_file()]


def _without_node(tmp_path: Path) -> str:
    """Return a PATH on which there is a shell and nothing of Node."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for name in ("sh", "git", "env"):
        found = shutil.which(name)
        if found is not None:
            (directory / name).symlink_to(found)
    return str(directory)
