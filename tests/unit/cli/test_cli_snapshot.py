from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile

import pytest

from tercio.cli.snapshot import list_files, write_snapshot
from tercio.errors import UserError


def make(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def names(root, **limits):
    return [file[0] for file in list_files(str(root), **limits)]


def test_ignore_files_are_honoured_at_every_level(tmp_path):
    make(
        tmp_path,
        {
            ".gitignore": "*.log\n/build/\ndata/*\n!data/keep.txt\n",
            "a.py": "", "x.log": "", "build/out": "", "sub/build/in": "", "data/big": "",
            "data/keep.txt": "", "sub/.gitignore": "!y.log\nsecret*\n", "sub/y.log": "",
            "sub/secret.txt": "", ".git/config": "", ".tercioignore": "notes/\n", "notes/n": "",
            "__pycache__/a.pyc": "",
        },
    )  # fmt: skip
    assert names(tmp_path) == sorted(
        [".gitignore", ".tercioignore", "a.py", "data/keep.txt", "sub/.gitignore", "sub/build/in",
         "sub/y.log"]
    )  # fmt: skip


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_choice_is_git_s_own(tmp_path):
    make(
        tmp_path,
        {
            ".gitignore": "*.o\n!keep.o\nout\nsub/*.tmp\n**/cache/\n# remark\n\\#odd\n",
            "a.o": "", "keep.o": "", "out/x": "", "sub/out": "", "sub/a.tmp": "",
            "sub/deep/b.tmp": "", "x/cache/y": "", "cache": "", "#odd": "",
            "sub/.gitignore": "!out\n*.md\n", "sub/r.md": "", "r.md": "",
        },
    )  # fmt: skip
    for argv in (("init", "-q"), ("add", "-A")):
        subprocess.run(["git", *argv], cwd=tmp_path, check=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert names(tmp_path) == sorted(filter(None, listed.stdout.split("\0")))


def test_the_same_files_give_the_same_bytes(tmp_path):
    make(tmp_path / "a", {"x.py": "1", "d/y.py": "2"})
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    packed = []
    for name in ("a", "b"):
        target = io.BytesIO()
        write_snapshot(list_files(str(tmp_path / name)), target)
        packed.append(target.getvalue())
    assert packed[0] == packed[1]


def test_links_and_modes_are_kept_and_owners_are_not(tmp_path):
    make(tmp_path, {"run.sh": "#!/bin/sh\n"})
    (tmp_path / "run.sh").chmod(0o755)
    if os.geteuid() == 0:
        os.chown(tmp_path / "run.sh", 1234, 1234)
    os.symlink("run.sh", tmp_path / "link")
    os.link(tmp_path / "run.sh", tmp_path / "twin")
    os.mkfifo(tmp_path / "pipe")
    target = io.BytesIO()
    write_snapshot(list_files(str(tmp_path)), target)
    target.seek(0)
    with tarfile.open(fileobj=target) as archive:
        members = {member.name: member for member in archive.getmembers()}
        assert set(members) == {"run.sh", "link", "twin"}
        assert members["run.sh"].mode & 0o111
        assert members["link"].linkname == "run.sh"
        twin = archive.extractfile("twin")
        assert twin is not None
        assert twin.read() == b"#!/bin/sh\n"
    assert {member.uid for member in members.values()} == {0}


def test_a_large_directory_is_refused_with_its_largest_part(tmp_path):
    make(tmp_path, {"data/big.bin": "x" * 5000, "a.py": "y"})
    with pytest.raises(UserError) as caught:
        names(tmp_path, limit_bytes=4000)
    assert caught.value.code == "too_large"
    assert "data (4.883KiB so far)" in caught.value.message
    assert ".tercioignore" in (caught.value.hint or "")
    with pytest.raises(UserError):
        names(tmp_path, limit_files=1)


def test_a_directory_that_is_none_is_told(tmp_path):
    with pytest.raises(UserError, match="is not a directory"):
        names(tmp_path / "nowhere")


def test_a_virtual_environment_is_left_out(tmp_path):
    make(tmp_path, {"a.py": "", "env/pyvenv.cfg": "", "env/lib/x.py": "", "lib/x.py": ""})
    (tmp_path / "env" / "python").symlink_to("/usr/bin/python3")
    assert names(tmp_path) == ["a.py", "lib/x.py"]


@pytest.mark.parametrize("target", ["/etc/hosts", "../x", "../../x"])
def test_a_link_that_leads_out_is_refused_before_it_is_sent(tmp_path, target):
    make(tmp_path, {"a.py": "", "sub/b.py": ""})
    (tmp_path / "sub" / "in").symlink_to("../a.py")
    assert "sub/in" in names(tmp_path)
    where = "out" if target == "../x" else "sub/out"
    (tmp_path / where).symlink_to(target)
    with pytest.raises(UserError, match=f"{where} -> {target}") as caught:
        names(tmp_path)
    assert ".tercioignore" in (caught.value.hint or "")
