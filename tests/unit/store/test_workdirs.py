from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import Path

import pytest

from tercio.errors import UserError
from tercio.store.workdirs import WorkdirStore


def packed(**members: bytes) -> bytes:
    return packed_members(
        *((tarfile.TarInfo(name.replace("__", "/")), body) for name, body in members.items())
    )


def packed_members(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for member, body in members:
            if body:
                member.size = len(body)
            archive.addfile(member, io.BytesIO(body))
    return gzip.compress(raw.getvalue(), mtime=0)


def odd(name: str, kind: bytes, link: str = "", mode: int = 0o644) -> bytes:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode = kind, link, mode
    return packed_members((member, b""))


def test_same_content_has_the_same_id_and_file(tmp_path: Path) -> None:
    store = WorkdirStore(tmp_path)
    body = packed(a=b"1", src__b=b"2")
    first = store.put(body)
    assert store.put(body) == first
    assert store.has(first)
    assert store.put(packed(a=b"2")) != first
    assert store.path(first).read_bytes() == body
    assert len(list(tmp_path.iterdir())) == 2


def test_upload_in_pieces_and_an_abandoned_one(tmp_path: Path) -> None:
    store = WorkdirStore(tmp_path)
    body = packed(a=os.urandom(100_000))
    with store.upload() as upload:
        for start in range(0, len(body), 1000):
            upload.write(body[start : start + 1000])
        workdir = upload.finish()
    assert workdir == store.put(body)
    with store.upload() as upload:
        upload.write(body)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"plain", "not a gzipped tar"),
        (gzip.compress(b"no tar" * 1000), "not a gzipped tar"),
        (packed(a=b"x" * 5000)[:-40], "not a gzipped tar"),
        (odd("../x", tarfile.REGTYPE), "'../x' leads outside"),
        (odd("a/../../x", tarfile.REGTYPE), "leads outside"),
        (odd("/etc/passwd", tarfile.REGTYPE), "leads outside"),
        (odd("x", tarfile.SYMTYPE, "/etc/passwd"), "leads outside"),
        (odd("a/x", tarfile.SYMTYPE, "../../y"), "leads outside"),
        (odd("x", tarfile.LNKTYPE, "../y"), "leads outside"),
        (odd("x", tarfile.CHRTYPE), "not a file, directory or link"),
        (odd("x", tarfile.FIFOTYPE), "not a file, directory or link"),
        (odd("x", tarfile.REGTYPE, mode=0o4755), "set-user-id"),
        (packed(a=b"1", b=b"2", c=b"3", d=b"4"), "more than 3 files"),
        (packed(a=b"\0" * 70_000_000), "unpacks to more than 64MiB"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_uploads_are_refused_and_leave_nothing(tmp_path: Path, body: bytes, told: str) -> None:
    store = WorkdirStore(tmp_path, members_max=3)
    with pytest.raises(UserError, match=told) as caught:
        store.put(body)
    assert caught.value.field == "workdir"
    assert list(tmp_path.iterdir()) == []


def test_links_inside_are_fine(tmp_path: Path) -> None:
    store = WorkdirStore(tmp_path)
    store.put(odd("a/x", tarfile.SYMTYPE, "../b/y"))
    store.put(odd("a/x", tarfile.LNKTYPE, "b/y"))


def test_too_large_upload_stops_early(tmp_path: Path) -> None:
    store = WorkdirStore(tmp_path, bytes_max=1000)
    with pytest.raises(UserError, match="larger than 1000B compressed") as caught:
        store.put(packed(a=os.urandom(2000)))
    assert caught.value.code == "too_large"
    assert list(tmp_path.iterdir()) == []


def test_unknown_id_and_path_tricks(tmp_path: Path) -> None:
    store = WorkdirStore(tmp_path / "w")
    for name in ("wd-" + "0" * 40, "../../etc/passwd", ""):
        assert not store.has(name)
        with pytest.raises(UserError) as caught:
            store.path(name)
        assert caught.value.code == "not_found"


def test_prune_keeps_what_is_used_or_young(tmp_path: Path) -> None:
    store = WorkdirStore(tmp_path)
    assert WorkdirStore(tmp_path / "none").prune([], older_than_s=1.0) == 0
    used, young, old = (store.put(packed(a=bytes([n]) * 9)) for n in range(3))
    for workdir in (used, old):
        os.utime(store.path(workdir), (100.0, 100.0))
    assert store.prune([used], older_than_s=200.0) == 1
    assert store.path(used).exists()
    assert store.path(young).exists()
    with pytest.raises(UserError):
        store.path(old)
    store_again = store.put(packed(a=bytes([0]) * 9))
    assert store_again == used
    assert store.prune([], older_than_s=200.0) == 0, "an upload makes it young again"


def test_one_that_is_asked_for_is_not_pruned_for_a_while(tmp_path: Path) -> None:
    store = WorkdirStore(tmp_path)
    workdir = store.put(packed(a=b"1"))
    os.utime(tmp_path / f"{workdir}.tar.gz", (100.0, 100.0))
    store.path(workdir)
    assert store.prune([], older_than_s=200.0) == 0
