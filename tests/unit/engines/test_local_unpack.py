"""Snapshots are unpacked by the same rules with and without Python's own filter."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from tercio.engines.local.unpack import unpack_member


@pytest.fixture(params=["own rules", "Python's filter"], autouse=True)
def rules(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "own rules":
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    elif not hasattr(tarfile, "data_filter"):
        pytest.skip("this Python has no filter")


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname, found.mode, found.mtime = kind, link, 0o4777, 1000
    return found


def unpack(target: Path, *members: tarfile.TarInfo) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for each in members:
            content = b"#!/bin/sh\n" if each.isreg() else b""
            each.size = len(content)
            tar.addfile(each, io.BytesIO(content))
    packed.seek(0)
    target.mkdir()
    with tarfile.open(fileobj=packed) as tar:
        for each in tar:
            unpack_member(tar, each, target)


def test_files_directories_and_links_inside(tmp_path: Path) -> None:
    root = tmp_path / "w"
    link = member("src/latest", tarfile.SYMTYPE, "../src/a/run.sh")
    unpack(root, member("empty", tarfile.DIRTYPE), member("src/a/run.sh"), link)
    file = root / "src" / "a" / "run.sh"
    assert file.read_text() == "#!/bin/sh\n"
    assert file.stat().st_mode & 0o7777 == 0o755
    assert file.stat().st_mtime == 1000
    assert os.readlink(root / "src" / "latest") == "../src/a/run.sh"
    assert (root / "src" / "latest").read_text() == "#!/bin/sh\n"
    assert (root / "empty").is_dir()


@pytest.mark.parametrize(
    "members",
    [
        [member("../evil")],
        [member("a/../../evil")],
        [member("evil", tarfile.SYMTYPE, "../outside")],
        [member("evil", tarfile.SYMTYPE, "/etc")],
        [member("pipe", tarfile.FIFOTYPE)],
        [member("null", tarfile.CHRTYPE)],
    ],
    ids=["parent", "parent below", "link out", "absolute link", "pipe", "device"],
)
def test_what_would_land_or_point_outside_is_refused(
    tmp_path: Path, members: list[tarfile.TarInfo]
) -> None:
    with pytest.raises(tarfile.TarError):
        unpack(tmp_path / "w", *members)
    assert not list((tmp_path / "w").iterdir())
    assert [path.name for path in tmp_path.iterdir()] == ["w"]


def test_a_file_does_not_go_through_a_link_that_stands_outside(tmp_path: Path) -> None:
    root = tmp_path / "w"
    (tmp_path / "out").mkdir()
    with pytest.raises(tarfile.TarError):
        unpack(root, member("d", tarfile.SYMTYPE, "."), member("d/../../out/x"))
    assert not list((tmp_path / "out").iterdir())


def test_an_absolute_name_becomes_relative(tmp_path: Path) -> None:
    unpack(tmp_path / "w", member("/evil-by-tercio-test"))
    assert (tmp_path / "w" / "evil-by-tercio-test").exists()
    assert not Path("/evil-by-tercio-test").exists()
