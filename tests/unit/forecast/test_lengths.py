"""Run times predicted from jobs alike: which group answers, and what is kept."""

from __future__ import annotations

import msgspec
import pytest

from tercio.forecast import lengths
from tercio.forecast.lengths import Kind, Lengths


def kind(user: str = "ana", name: str = "train-7", devices: int = 8000) -> Kind:
    return Kind("default", user, "lab", name, devices)


def test_the_nearest_group_with_enough_runs_answers() -> None:
    known = Lengths()
    assert known.predict(kind()) is None
    for run_s in (100.0, 300.0, 200.0):
        known.note(kind(), run_s)
    for run_s in (7000.0, 7000.0, 7000.0):
        known.note(kind(name="eval", devices=1000), run_s)
    assert known.predict(kind(name="train-8")) == (200.0, 3, "this user, name and size")
    assert known.predict(kind(name="train_9", devices=1000)) == (200.0, 3, "this user and name")
    assert known.predict(kind(name="other", devices=1000)) == (7000.0, 3, "this user and size")
    other = known.predict(kind(name="other", devices=2000))
    assert other is not None
    assert other.of == "this user"
    stranger = known.predict(kind(user="bob"))
    assert stranger is not None
    assert (stranger.of, stranger.runs) == ("this queue", 6)


def test_what_is_recent_counts_and_what_is_kept_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lengths, "_GROUPS_KEPT", 20)
    known = Lengths()
    for run_s in [10.0] * 50 + [90.0] * 9:
        known.note(kind(), run_s)
    found = known.predict(kind())
    assert found is not None
    assert found.run_s == 90.0
    for at in range(100):
        known.note(kind(user=f"u{at}"), 5.0)
    assert len(known.runs) == 20
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(known), type=Lengths).runs == known.runs


def test_names_of_digits_alone_are_names() -> None:
    known = Lengths()
    known.note(kind(name="2024"), 50.0)
    found = known.predict(kind(name="2024"))
    assert found is not None
    assert found.of == "this user, name and size"
