"""docs/twin.md: its cluster is a cluster, and its commands do what the walk says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tercio.twin.stats import METRICS
from tercio.twin.traces.formats import READERS

PAGE = (Path(__file__).parents[3] / "docs" / "twin.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines()]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the walk has made before its first command."""
    header = re.search(r"--format (\S+)", PAGE)
    assert header is not None
    columns = header[1].split(",")
    rows = []
    for n in range(80):
        at = f"2026-03-{1 + n // 8:02d}T{(n % 8) * 3:02d}:00:00"
        held = f"cpu=16,gres/gpu:h100={8 * (1 + n % 2)},gres/gpu={8 * (1 + n % 2)},node={1 + n % 2}"
        row = {
            "JobID": str(n), "User": "ana", "Account": "nlp", "Partition": "gpu", "Submit": at,
            "Start": at, "End": "Unknown", "ElapsedRaw": str(9000 + 900 * (n % 5)),
            "State": "COMPLETED", "Timelimit": "1-00:00:00", "NNodes": str(1 + n % 2),
            "AllocTRES": held, "ReqTRES": held,
        }  # fmt: skip
        rows.append("|".join(row[name] for name in columns))
    (tmp_path / "march.txt").write_text("|".join(columns) + "\n" + "\n".join(rows) + "\n")
    cluster = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert cluster is not None
    (tmp_path / "cluster.yaml").write_text(cluster[1])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_command_of_the_walk_works(tercio, place: Path) -> None:  # type: ignore[no-untyped-def]
    assert len(COMMANDS) >= 6
    for line in COMMANDS:
        if "now.json" in line or "shadow" in line:
            continue  # of a running server, which has tests of its own
        program, *words = shlex.split(line)
        answer = tercio(*words)
        assert (program, answer.code) == ("tercio", 0), (line, answer.err)
    assert (place / "report.html").stat().st_size > 10_000


def test_every_format_and_figure_is_told() -> None:
    logs = PAGE.partition("## Logs it reads")[2].partition("\n## ")[0]
    told = set(re.findall(r"^\| `([a-z]+)` \|", logs, re.MULTILINE))
    assert told == {*READERS, "journal"}
    text = PAGE.lower()
    for metric in METRICS:
        word = metric.title.lower().split(",")[0].split(" ")[0]
        assert word in text, metric.title
