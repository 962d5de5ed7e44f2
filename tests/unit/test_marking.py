"""Marks that a job makes by `tercio.step()` are those that the engine reads."""

from __future__ import annotations

from pathlib import Path

import pytest

import tercio
from tercio.engines.marks import MARKS, read_marks, read_new_marks
from tercio.health.marks import parse_mark


def test_steps_and_checkpoints_are_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERCIO_MARKS", str(tmp_path / MARKS))
    tercio.step(1, own_s=0.25)
    with tercio.checkpoint():
        pass
    tercio.step()
    found = read_marks(tmp_path)
    assert found is not None
    assert (found.step_count, len(found.checkpoints)) == (2, 1)
    ((text, offset),) = read_new_marks([(tmp_path, 0)])
    assert offset == (tmp_path / MARKS).stat().st_size
    first = parse_mark(text.splitlines()[0])
    assert first is not None
    assert (first.step, first.own_s) == (1, 0.25)


def test_outside_of_a_job_and_on_a_full_disk_nothing_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TERCIO_MARKS", raising=False)
    tercio.step(1)
    monkeypatch.setenv("TERCIO_MARKS", str(tmp_path / "gone" / "marks"))
    tercio.step(1)
