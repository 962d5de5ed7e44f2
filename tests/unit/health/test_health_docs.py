"""The page about health says what the table and the code say."""

import re
from pathlib import Path

import pytest

from tercio.health.finding import Action
from tercio.health.table import FaultTable

PAGE = (Path(__file__).parents[3] / "docs" / "health.md").read_text()
WORDS = {
    "reset when idle": Action.RESET_GPU_WHEN_IDLE,
    "fatal; reset": Action.RESET_GPU,
    "restart the job": Action.RESTART_APP,
    "job retries": Action.RESTART_APP,
    "observe": Action.OBSERVE,
}


@pytest.mark.parametrize("code", ["63", "64", "94", "109", "43", "44", "38", "121", "32"])
def test_table_of_disagreements_gives_our_verdict(table: FaultTable, code: str) -> None:
    [row] = re.findall(rf"^\| {code} .*\| ([^|]+) \|$", PAGE, re.MULTILINE)
    row = row.split("(")[0]
    [verdict] = [action for word, action in WORDS.items() if word in row]
    known = table.row("xid", code)
    assert known is not None
    assert known.action is verdict


def test_page_names_the_date_of_the_table(table: FaultTable) -> None:
    assert f"fault table of {table.date}" in PAGE
