"""The page is built into a package by any npm, also by one that is a Python program."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("hatchling", reason="`make ui` installs it")

ROOT = Path(__file__).parents[3]
NPM = """#!/bin/sh
OUT=../src/tercio/web/static
test -z "$PYTHONPATH$PYTHONNOUSERSITE" || exit 1
test "$1" = ci || { mkdir -p $OUT && echo page > $OUT/index.html; }
"""


def hook(root: Path):
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.WebPage(str(root), {}, None, None, "", "wheel")


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    (tmp_path / "ui").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "npm").write_text(NPM)
    (tmp_path / "bin" / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("PYTHONPATH", "as pip sets it for a build")
    monkeypatch.setenv("PYTHONNOUSERSITE", "1")
    monkeypatch.setenv("TERCIO_WEB", "required")
    return tmp_path


def test_npm_does_not_see_what_hides_packages_from_a_build(checkout):
    hook(checkout).initialize("standard", {})
    assert (checkout / "src/tercio/web/static/index.html").read_text() == "page\n"


def test_an_editable_install_leaves_the_page_alone(checkout):
    hook(checkout).initialize("editable", {})
    assert not (checkout / "src").exists()
