"""Every line of the kernel log once, over restarts, rotation and half-written lines."""

from __future__ import annotations

from pathlib import Path

from tercio.collect.kernel_log import KernelLog, since_boot


def texts(log: KernelLog) -> list[str]:
    return [line.text for line in log.read()]


def test_only_what_comes_after_the_first_look_counts(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.write_text("old\n")
    log = KernelLog(str(path))
    assert texts(log) == []
    with path.open("a") as file:
        file.write("new\nhalf")
    assert texts(log) == ["new"]
    with path.open("a") as file:
        file.write(" line\n")
    assert texts(log) == ["half line"]
    assert since_boot(str(path)) == "old\nnew\nhalf line\n"


def test_a_restart_goes_on_where_was_saved(tmp_path: Path) -> None:
    path, cursor = tmp_path / "kern.log", tmp_path / "cursor"
    path.write_text("")
    log = KernelLog(str(path), cursor_file=cursor)
    log.read()
    log.save()
    path.write_text("one\n")
    assert texts(log) == ["one"]
    # It ends before anybody was told: the next one reads the line again, under the same number.
    again = KernelLog(str(path), cursor_file=cursor)
    (line,) = again.read()
    assert (line.seq, line.text) == (0, "one")
    again.save()
    assert texts(KernelLog(str(path), cursor_file=cursor)) == []


def test_a_rotated_or_truncated_log_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.write_text("a long line before\n")
    log = KernelLog(str(path))
    log.read()
    path.rename(tmp_path / "kern.log.1")
    path.write_text("first\n")
    assert texts(log) == ["first"]
    path.write_text("x\n")
    assert texts(log) == ["x"]


def test_a_log_that_is_not_there_is_a_note(tmp_path: Path) -> None:
    log = KernelLog(str(tmp_path / "none"))
    assert texts(log) == []
    assert "No such file" in log.note


def test_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.write_bytes(b"")
    log = KernelLog(str(path))
    log.read()
    path.write_bytes(b"\xff\xfe NVRM\r\n")
    assert texts(log) == ["\ufffd\ufffd NVRM"]
