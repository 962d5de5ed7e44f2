from __future__ import annotations

import io
import json
import logging

import pytest

from tercio.logs import configure, facts


@pytest.fixture(autouse=True)
def restored_logging():
    root = logging.getLogger("tercio")
    before = (root.handlers[:], root.level, root.propagate)
    yield
    root.handlers[:], root.level, root.propagate = before[0], before[1], before[2]


def test_json_line_holds_the_event_and_its_facts() -> None:
    stream = io.StringIO()
    configure("info", "auto", stream=stream)
    logging.getLogger("tercio.runtime").warning("journal_stalled", extra=facts(cause="disk full"))
    line = json.loads(stream.getvalue())
    assert (line["event"], line["level"], line["cause"]) == (
        "journal_stalled",
        "warning",
        "disk full",
    )


def test_console_line_quotes_what_has_spaces_and_keeps_one_line_each() -> None:
    stream = io.StringIO()
    configure("info", "console", stream=stream)
    logging.getLogger("tercio.x").info("done", extra=facts(job_id="job-00001", why="a b", text=""))
    assert stream.getvalue().rstrip("\n").endswith('done job_id=job-00001 why="a b" text=""')


def test_level_is_kept_and_traceback_is_written() -> None:
    stream = io.StringIO()
    configure("error", "json", stream=stream)
    log = logging.getLogger("tercio.x")
    log.info("quiet")
    try:
        raise ValueError("boom")
    except ValueError:
        log.exception("failed")
    (line,) = stream.getvalue().splitlines()
    assert "ValueError: boom" in json.loads(line)["traceback"]
