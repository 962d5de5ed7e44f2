"""What a task writes down of its own progress."""

from __future__ import annotations

import os
from pathlib import Path

from tercio.engines.marks import MARKS, parse_marks, read_marks


def test_steps_gaps_and_checkpoints() -> None:
    marks = parse_marks(
        ["100.0 step 1", "101.0 step 2", "200.5 step 3", "201 checkpoint begin",
         "205 checkpoint end", "206 checkpoint begin"]
    )  # fmt: skip
    assert marks is not None
    assert (marks.step_count, marks.first_step_s, marks.last_step_s) == (3, 100.0, 200.5)
    assert marks.gaps == ((101.0, 200.5),)
    assert marks.checkpoints == ((201.0, 205.0),)


def test_tokens_and_bytes_are_read_where_they_are_told() -> None:
    lines = ["1 step 1 tokens 4096", "2 step 2", "3 step 3 tokens many", "4 checkpoint begin",
             "5 checkpoint end bytes 1e9"]  # fmt: skip
    marks = parse_marks([*lines, *(f"{6 + n} step {n}" for n in range(100))])
    assert marks is not None
    assert (marks.step_tokens, marks.checkpoint_bytes) == (4096.0, 1e9)
    assert marks.early_s[:4] == (1.0, 2.0, 3.0, 6.0)
    assert (len(marks.early_s), marks.step_count) == (64, 103)
    assert parse_marks(["1 step 1 tokens -5"]).step_tokens is None  # type: ignore[union-attr]


def test_what_is_no_mark_is_passed_over() -> None:
    assert parse_marks(["", "step 1", "x step 2", "7 dance", "8 checkpoint end"]) is None


def test_the_file_is_the_users_and_no_link_is_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("1.0 step 1\n")
    (tmp_path / MARKS).symlink_to(secret)
    assert read_marks(tmp_path) is None
    (tmp_path / MARKS).unlink()
    os.mkfifo(tmp_path / MARKS)
    assert read_marks(tmp_path) is None
    (tmp_path / MARKS).unlink()
    assert read_marks(tmp_path) is None
    (tmp_path / MARKS).write_bytes(b"\xff\n2.0 step 1\n")
    found = read_marks(tmp_path)
    assert found is not None
    assert found.step_count == 1
