"""`tercio twin compare` and `fit` from the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tercio.cli.session import Session
from tercio.cli.twin_compare import print_comparison
from tercio.twin.compare import Comparison, Difference, Row
from tercio.twin.stats import Waits

HEAD = "JobID|User|Account|Partition|Submit|Start|End|ElapsedRaw|State|Timelimit|AllocTRES\n"
CLUSTER = """
nodes:
  - {name: "a[1-2]", devices: "H100:8", labels: {rack: r1}}
  - {name: "b1", devices: "H100:8", labels: {rack: r2}}
"""


@pytest.fixture
def log(tmp_path: Path) -> str:
    rows = []
    for n in range(60):
        nodes = 2 if n % 5 == 0 else 1
        hour = f"2026-03-{1 + n // 6:02d}T{(n % 6) * 2:02d}:00:00"
        start = hour.replace(":00:00", ":10:00")
        held = f"cpu=16,gres/gpu:h100={8 * nodes},gres/gpu={8 * nodes},mem=64G,node={nodes}"
        rows.append(
            f"{100 + n}|u{n % 3}|nlp|gpu|{hour}|{start}|Unknown|{3600 * (1 + n % 9)}|COMPLETED"
            f"|1-00:00:00|{held}"
        )
    path = tmp_path / "march.txt"
    path.write_text(HEAD + "\n".join(rows) + "\n")
    return str(path)


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER)
    return str(path)


def test_policies_and_clusters_side_by_side(tercio, log: str, cluster: str) -> None:  # type: ignore[no-untyped-def]
    answer = tercio(
        "twin", "compare", log, "--cluster", cluster, "--policy", "fifo", "--policy", "easy",
        "--add", "16xH100", "--drain", "r2", "-o", "json",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    body = json.loads(answer.out)
    assert body["arms"] == [
        "fifo", "easy", "fifo +16xH100 without r2", "easy +16xH100 without r2",
    ]  # fmt: skip
    rows = {row["key"]: row for row in body["rows"]}
    assert rows["jobs"]["values"] == [60.0] * 4
    waits = rows["mean_wait_s"]["values"]
    assert waits[2] < waits[0]
    assert rows["mean_wait_s"]["differences"][0] is None
    assert rows["mean_wait_s"]["differences"][2]["mean"] == waits[2] - waits[0]
    assert {"cost_usd", "energy_kwh", "fragmentation_ratio"} <= rows.keys()
    assert list(body["waits_by_size"]) == ["5-8", "9-16"]
    assert (body["recorded_waits"]["jobs"], body["recorded_waits"]["mean_s"]) == (60, 600.0)


def test_the_table_and_the_page(tercio, log: str, cluster: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    page = tmp_path / "report.html"
    answer = tercio(
        "twin", "compare", log, "--cluster", cluster, "--policy", "fifo", "--policy", "easy",
        "--seeds", "3", "--html", str(page),
    )  # fmt: skip
    assert answer.code == 0, answer.err
    header = answer.out.splitlines()[0].split()
    assert header[:3] == ["FIGURE", "fifo", "easy"]
    assert "95 % INTERVAL" in answer.out
    assert "wait by gang size" in answer.out
    assert "in the log itself 60 jobs waited: mean 10m" in answer.out
    assert f"wrote {page}" in answer.err
    assert "fifo against easy" in page.read_text(encoding="utf-8")


class Terminal(Session):
    def __init__(self, columns: int) -> None:
        super().__init__({})
        self._columns = columns

    def width(self) -> int | None:
        return self._columns


@pytest.mark.parametrize(("columns", "tables"), [(100, 2), (400, 1)])
def test_arms_that_do_not_stand_side_by_side_on_a_terminal_stand_below(
    capsys: pytest.CaptureFixture[str], columns: int, tables: int
) -> None:
    values, gap = (
        (3661.0, 60.0, 61.0),
        Difference(mean=-3601.0, low=-4000.0, high=-3000.0, ratio=-0.984, verdict="better"),
    )
    row = Row(key="mean_wait_s", title="Wait, mean", values=values, differences=(None, gap, gap))
    waits = Waits(jobs=9, mean_s=60.0, p50_s=60.0, p95_s=60.0, p99_s=90.0)
    comparison = Comparison(
        arms=("now", "easy", "easy +64xH100"), seeds=2, rows=(row,),
        waits_by_size={"1": (waits, waits, None), "2-4": (waits, waits, waits)}, waits_by_queue={},
    )  # fmt: skip
    print_comparison(Terminal(columns), comparison)
    shown = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("FIGURE") for line in shown) == tables
    assert all(len(line) <= columns for line in shown)
    # Every table has the baseline; nothing of an arm is cut.
    assert sum(line.count("1h1m") for line in shown) == tables
    assert sum(line.count("-1h (-98.4 %), better") for line in shown) == 2
    assert [line.split() for line in shown[-3:]] == [
        ["DEVICES", "now", "easy", "easy", "+64xH100"],
        ["1", "1m,", "1m30s", "1m,", "1m30s", "-"],
        ["2-4", "1m,", "1m30s", "1m,", "1m30s", "1m,", "1m30s"],
    ]


def test_equal_calls_give_equal_answers(tercio, log: str, cluster: str) -> None:  # type: ignore[no-untyped-def]
    words = ("twin", "compare", log, "--cluster", cluster, "--seeds", "2", "-o", "json")
    found = tercio(*words)
    assert found.code == 0, found.err
    assert tercio(*words).out == found.out
    assert tercio(*words, "--processes", "2").out == found.out, "side by side it is the same"


def test_more_devices_in_less_use_are_not_worse(tercio, log: str, cluster: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    page = tmp_path / "report.html"
    words = ("twin", "compare", log, "--cluster", cluster, "--policy", "fifo", "--seeds", "3",
             "--add", "64xH100", "--html", str(page))  # fmt: skip
    answer = tercio(*words)
    assert answer.code == 0, answer.err
    (row,) = (line for line in answer.out.splitlines() if line.startswith("Utilisation"))
    assert "points, other capacity" in row
    assert "worse" not in row
    (cell,) = re.findall(r"<th[^>]*>Utilisation</th>.*?</tr>", page.read_text(encoding="utf-8"))
    assert 'class="gap neutral"' in cell


def test_profiles_that_are_not_there_are_named(tercio, log: str, cluster: str) -> None:  # type: ignore[no-untyped-def]
    answer = tercio("twin", "compare", log, "--cluster", cluster, "--profiles", "/nowhere")
    assert answer.code == 3
    assert "--profiles /nowhere: there is no such file or folder" in answer.err
    assert "leave --profiles out" in answer.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--add", "12xH100"), "no whole number of nodes"),
        (("--drain", "rack7"), "no node, rack or other label"),
        (("--seeds", "0"), "--seeds 0"),
        (("--policy", "fifo", "--policy", "fifo"), "stands twice"),
        (("--filter", "Partition=none"), "passes the filters"),
        (("--html", "/nowhere/x.html"), "cannot write"),
    ],
)
def test_what_cannot_be_compared_is_refused(tercio, log, cluster, words, message) -> None:  # type: ignore[no-untyped-def]
    answer = tercio("twin", "compare", log, "--cluster", cluster, *words)
    assert answer.code == 2
    assert message in answer.err


def test_a_model_is_learnt_and_replayed_at_another_load(  # type: ignore[no-untyped-def]
    tercio, log: str, cluster: str, tmp_path: Path
) -> None:
    model = tmp_path / "model.json"
    answer = tercio("twin", "fit", log, "--to", str(model))
    assert answer.code == 0, answer.err
    assert "60 in " in answer.out
    drawn = {}
    for load in ("1", "3"):
        answer = tercio(
            "twin", "replay", "--model", str(model), "--load", load, "--cluster", cluster,
            "--policy", "easy", "--team", "vision=gpu/nlp:0.5", "-o", "json",
        )  # fmt: skip
        assert answer.code == 0, answer.err
        drawn[load] = json.loads(answer.out)
    assert drawn["3"]["jobs"] > 2 * drawn["1"]["jobs"]
    assert drawn["3"]["mean_wait_s"] > drawn["1"]["mean_wait_s"]


def test_policies_are_compared_on_drawn_workloads(  # type: ignore[no-untyped-def]
    tercio, log: str, cluster: str, tmp_path: Path
) -> None:
    model = tmp_path / "model.json"
    assert tercio("twin", "fit", log, "--to", str(model)).code == 0
    answer = tercio(
        "twin", "compare", "--model", str(model), "--load", "2", "--cluster", cluster,
        "--policy", "easy", "--add", "16xH100", "--seeds", "4", "-o", "json",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    body = json.loads(answer.out)
    rows = {row["key"]: row for row in body["rows"]}
    # Four different draws: their mean is no whole number but by chance.
    assert rows["jobs"]["values"][0] != 60.0
    assert body["recorded_waits"] is None
    assert rows["mean_wait_s"]["differences"][1]["mean"] < 0
    assert rows["mean_wait_s"]["differences"][1]["low"] is not None


def test_a_trace_or_a_model_and_not_both(tercio, log: str, cluster: str) -> None:  # type: ignore[no-untyped-def]
    for words in ((), (log, "--model", log)):
        answer = tercio("twin", "replay", *words, "--cluster", cluster)
        assert answer.code == 2
        assert "--model" in answer.err


def test_a_log_of_slurm_is_replayed_and_its_faults_named(  # type: ignore[no-untyped-def]
    tercio, log: str, cluster: str
) -> None:
    answer = tercio("twin", "replay", log, "--cluster", cluster, "--policy", "easy", "-o", "json")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["jobs"] == 60
    with Path(log).open("a", encoding="utf-8") as file:
        file.write("999|ana|nlp|gpu|yesterday|Unknown|Unknown|5|COMPLETED|5|cpu=1\n")
    answer = tercio("twin", "replay", log, "--cluster", cluster)
    assert answer.code == 2
    assert f"{log}:62: Submit: 'yesterday' is not a time" in answer.err
    answer = tercio("twin", "replay", log, "--cluster", cluster, "--skip-bad-lines")
    assert answer.code == 0
    assert "left out 1 row: unreadable Submit" in answer.err
