"""Work side by side: equal results in order, and a quick end when asked for one."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
from pathlib import Path

import msgspec
import pytest
from bench.ahead import full_server

from tercio.cli.processes import in_processes
from tercio.core.snapshots import save_state
from tercio.errors import UserError


def times_of(factor: int, part: int) -> tuple[int, int]:
    return factor * part, os.getpid()


def refuse(_: None, part: int) -> int:
    if part == 2:
        raise UserError("no", field="part")
    return part


def die(_: None, part: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt(parent: int, part: int) -> None:
    if part == 0:
        os.kill(parent, signal.SIGINT)
    threading.Event().wait()  # nobody waits for this one


def spread(work, context, count, processes=2, told=None):  # type: ignore[no-untyped-def]
    heard = [] if told is None else told
    return in_processes(
        work, context, range(count), processes=processes,
        tell=lambda result, done, whole: heard.append((result, done, whole)),
    )  # fmt: skip


def test_results_come_in_order_whatever_the_number_of_processes() -> None:
    told: list[tuple[tuple[int, int], int, int]] = []
    found = spread(times_of, 7, 5, told=told)
    assert [value for value, _ in found] == [0, 7, 14, 21, 28]
    assert os.getpid() not in {pid for _, pid in found}
    assert [(done, whole) for _, done, whole in told] == [(done, 5) for done in range(1, 6)]
    assert {result for result, _, _ in told} == set(found)  # in the order in which they were done
    assert spread(times_of, 7, 5, processes=1) == [(7 * at, os.getpid()) for at in range(5)]


def test_what_takes_no_time_is_done_here() -> None:
    told: list[tuple[tuple[int, int], int, int]] = []
    found = spread(times_of, 7, 3, processes=None, told=told)
    assert found == [(7 * at, os.getpid()) for at in range(3)]
    assert told == [(found[at], at + 1, 3) for at in range(3)]
    assert spread(times_of, 7, 0, processes=None) == []


def test_an_error_of_the_work_is_raised_here() -> None:
    with pytest.raises(UserError, match="no"):
        spread(refuse, None, 4)
    assert not multiprocessing.active_children()


def test_a_process_that_is_killed_is_told_and_not_waited_for() -> None:
    with pytest.raises(UserError, match="a process ended") as caught:
        spread(die, None, 2)
    assert caught.value.field == "processes"


def test_an_interrupt_ends_all_of_them() -> None:
    # A shell that starts tests in the background has them ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            spread(interrupt, os.getpid(), 2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not multiprocessing.active_children()


def test_courses_are_the_same_side_by_side(tercio, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    image = full_server(6, nodes=2)
    source = tmp_path / "now.json"
    source.write_bytes(save_state(msgspec.msgpack.encode(image), saved_s=1800.0, version="t"))

    def run(*more: str) -> dict[str, object]:
        answer = tercio("twin", "run", "--from", str(source), "--seeds", "3", "-o", "json", *more)
        assert answer.code == 0, answer.err
        return json.loads(answer.out)

    whole = run()
    assert whole["jobs"]
    assert run("--processes", "1") == whole
    assert run("--processes", "2") == whole
