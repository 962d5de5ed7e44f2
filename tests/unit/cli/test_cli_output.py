from __future__ import annotations

import io
import sys

import pytest

from tercio.cli import human
from tercio.cli.output import Column, print_facts, print_table, state_column
from tercio.cli.progress import Progress
from tercio.cli.session import Session


class Terminal(Session):
    """A session on a terminal of a given width."""

    def __init__(self, columns: int) -> None:
        super().__init__({})
        self.columns = columns

    def width(self) -> int | None:
        return self.columns


COLUMNS = (
    Column("ID", "id", lambda row: row[0]),
    state_column("state", lambda row: row[1]),
    Column("COUNT", "count", lambda row: row[2], is_right=True),
    Column("WHY", "why", lambda row: row[3], is_flexible=True),
)
ROWS = (("job-1", "running", "8", ""), ("job-22", "queued", "16", "because " * 20))


def test_only_the_flexible_column_is_cut_and_never_below_its_minimum(capsys):
    print_table(Terminal(60), COLUMNS, ROWS)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) == 60
    assert lines[2].endswith("…")
    assert lines[2].startswith("job-22  ○ queued      16  because")
    print_table(Terminal(38), COLUMNS, ROWS)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "job-22  ○ queued      16  because bec…"
    print_table(Terminal(20), COLUMNS, ROWS)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines if line.startswith("ID")] == [
        ["ID", "STATE"], ["ID", "COUNT"], ["ID", "WHY"]
    ]  # fmt: skip
    assert max(map(len, lines)) == 20


def test_a_table_without_prose_leaves_spare_columns_out_and_else_stands_in_parts(capsys):
    names = ["QUEUE", "GUARANTEE", "ENTITLED", "USED", "BORROWED"]
    columns = [Column(name, name, lambda row: row) for name in names]
    columns.append(Column("SELDOM", "seldom", lambda row: row, spare=1))
    rows = ["H100:38.7", "-"]
    print_table(Terminal(54), columns, rows)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [names, ["H100:38.7"] * 5, ["-"] * 5]
    print_table(Terminal(44), columns, rows)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [
        names[:4], ["H100:38.7"] * 4, ["-"] * 4, [],
        ["QUEUE", "BORROWED", "SELDOM"], ["H100:38.7"] * 3, ["-"] * 3,
    ]  # fmt: skip
    assert max(map(len, lines)) <= 44


def test_spare_columns_make_room_for_the_prose(capsys):
    spare = (
        COLUMNS[0], Column("USER", "user", lambda row: "ana", spare=1),
        Column("START", "start", lambda row: "in 30m", spare=2), COLUMNS[3],
    )  # fmt: skip
    headers = {}
    for width in (200, 60, 50):
        print_table(Terminal(width), spare, ROWS)
        headers[width] = capsys.readouterr().out.splitlines()[0].split()
    assert headers[200] == ["ID", "USER", "START", "WHY"]
    assert headers[60] == ["ID", "USER", "WHY"]
    assert headers[50] == ["ID", "WHY"]
    print_table(Terminal(40), spare, [("job-1", "", "", "short")])
    assert capsys.readouterr().out.splitlines()[0].split() == ["ID", "USER", "START", "WHY"]


def test_numbers_are_right_aligned_and_symbols_stand_on_terminals_only(capsys):
    print_table(Terminal(200), COLUMNS, ROWS)
    assert "● running      8" in capsys.readouterr().out
    print_table(Session({}), COLUMNS, ROWS)
    plain = capsys.readouterr().out
    assert "●" not in plain
    assert "because " * 19 in plain


def test_a_stream_without_unicode_gets_none(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    print_table(Terminal(60), COLUMNS, ROWS)
    stream.flush()
    assert b"job-22" in stream.buffer.getvalue()


def test_facts_without_a_value_are_left_out(capsys):
    print_facts(Session({}), (("a", "1"), ("bb", ""), ("ccc", human.NOTHING), ("d", "x\ny")))
    assert capsys.readouterr().out == "a  1\nd  x\n   y\n"


@pytest.mark.parametrize(
    ("environment", "option", "has_color"),
    [
        ({}, "auto", False),
        ({"CLICOLOR_FORCE": "1"}, "auto", True),
        ({"CLICOLOR_FORCE": "0"}, "auto", False),
        ({"CLICOLOR_FORCE": "1", "NO_COLOR": "1"}, "auto", False),
        ({"NO_COLOR": "1"}, "always", True),
        ({"CLICOLOR_FORCE": "1"}, "never", False),
    ],
)
def test_colour_follows_option_then_environment_then_terminal(environment, option, has_color):
    session = Session(environment)
    session.color = option
    assert session.has_color(io.StringIO()) is has_color


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_dumb_terminal_gets_no_colour():
    assert Session({"TERM": "xterm"}).has_color(Tty())
    assert not Session({"TERM": "dumb"}).has_color(Tty())


def test_progress_shows_on_terminals_and_wipes_itself(monkeypatch):
    stream = Tty()
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress(Session({}), "packing", first_s=0.0) as progress:
        while "packing" not in stream.getvalue():
            pass
        progress.say("sending")
        while "sending" not in stream.getvalue():
            pass
    assert stream.getvalue().endswith("\r\x1b[K")


def test_progress_is_silent_without_a_terminal_or_when_quiet(monkeypatch):
    assert not Progress(Session({}), "working").is_shown
    monkeypatch.setattr(sys, "stderr", Tty())
    session = Session({})
    assert Progress(session, "working").is_shown
    session.is_quiet = True
    assert not Progress(session, "working").is_shown


def test_words_for_people():
    assert human.ago(None, 5.0) == human.NOTHING
    assert human.ago(0.0, 5400.0) == "1h30m"
    assert human.ago(10.0, 5.0) == "0s"
    assert human.until(None, 0.0) == human.NOTHING
    assert human.until(0.5, 0.0) == "now"
    assert human.until(1800.0, 0.0) == "in 30m"
    assert human.until(100 * 86400.0, 0.0) == "1970-04-11"
    assert human.devices({"H100": 8.0, "A100": 0.5, "L4": 0.0}) == "H100:8+A100:0.5"
    assert human.devices({}) == human.NOTHING
    assert human.shares({"H100": 6.0}, {"H100": 8.0, "L4": 2.0}) == "H100 6/8, L4 0/2"
    assert human.amounts({"H100": 8.0, "memory": 1024.0**4}) == "H100:8+memory:1TiB"
    assert human.memory_share(128 * 1024**3, 512 * 1024**3) == "128/512GiB"
    assert human.memory_share(0, 1024**4) == "0/1TiB"
    assert human.memory_share(512 * 1024**3, 1024**4) == "512GiB/1TiB"
    assert human.device_hours({"H100": 45_000_000, "L4": 1}) == "H100 12.5h, L4 0h"
    assert human.quantity(1, "node") == "1 node"
    assert human.quantity(2, "query", "queries") == "2 queries"
    assert human.bar(0.5, width=4) == "██░░"
    assert human.bar(7.0, width=2) == "██"


def test_long_facts_go_on_under_their_column_on_a_terminal_only(capsys):
    facts = (("why", "one two three four five six seven"), ("wants", "H100:4"))
    print_facts(Terminal(37), facts, indent="  ")
    assert capsys.readouterr().out == (
        "  why    one two three four five six\n         seven\n  wants  H100:4\n"
    )
    print_facts(Session({}), facts)
    assert capsys.readouterr().out.splitlines()[0].endswith("six seven")


def test_instants_in_messages_are_told_in_the_zone_of_the_reader():
    text = "promised to job-1 from 2026-11-30T16:37:17.509Z, done 2026-12-01T08:00:00Z; 5 of 8 free"
    first, second = human.local_time(1796056637.509), human.local_time(1796112000.0)
    assert human.told(text) == f"promised to job-1 from {first}, done {second}; 5 of 8 free"
    assert "T16" not in human.told(text)
