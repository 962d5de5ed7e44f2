"""The distributed example, from the command line to its last line, and over a killed server."""

from __future__ import annotations

import re
import shutil

import pytest

from .room import ROOT, Room

pytest.importorskip("torch", reason="the example needs torch: pip install 'tercio[examples]'")
pytest.importorskip("sklearn", reason="the example needs scikit-learn")
pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("many-ports")]

EPOCH = re.compile(r"epoch (\d+)/(\d+)  loss ([\d.]+)")


def losses(log: str) -> dict[int, float]:
    """Losses by epoch; a line that came twice is a fault."""
    found: dict[int, float] = {}
    for epoch, _, loss in EPOCH.findall(log):
        assert int(epoch) not in found, f"epoch {epoch} was printed twice"
        found[int(epoch)] = float(loss)
    return found


def test_the_example_learns(live: Room) -> None:
    example = ROOT / "examples" / "train-ddp" / "job.yaml"
    job_id = live.cli("submit", "-q", str(example)).strip()
    live.cli("wait", "--timeout", "90s", job_id)
    log = live.cli("logs", job_id)
    found = losses(log)
    assert sorted(found) == list(range(1, 9))
    assert found[8] < found[1] / 2
    assert "rank 0 of 2" in log
    assert "rank 1 of 2" in log
    assert live.task_pids() == []


def test_a_gang_that_does_not_fit_waits_and_says_what_would_start_it(live: Room) -> None:
    text = (ROOT / "examples" / "train-ddp" / "job.yaml").read_text(encoding="utf-8")
    assert "tasks: 2" in text
    shutil.copy(ROOT / "examples" / "train-ddp" / "train.py", live.work)
    (live.work / "job.yaml").write_text(text.replace("tasks: 2", "tasks: 3"), encoding="utf-8")
    job_id = live.cli("submit", "-q", "job.yaml").strip()
    told = live.cli("explain", job_id)
    assert "needs 3 tasks of 1 CPU" in told
    assert "has room for 2" in told
    assert "ask for 2 tasks; it would start now" in told
    assert live.job(job_id).state == "queued"


def test_a_killed_server_costs_the_example_nothing(live: Room) -> None:
    shutil.copy(ROOT / "examples" / "train-ddp" / "train.py", live.work)
    text = (ROOT / "examples" / "train-ddp" / "job.yaml").read_text(encoding="utf-8")
    text = text.replace("--epochs 8", "--epochs 6 --pause 0.5")
    (live.work / "job.yaml").write_text(text, encoding="utf-8")
    job_id = live.cli("submit", "-q", "job.yaml").strip()
    with live.following("logs", "-f", job_id) as log:
        log.until("epoch 2/")
        live.kill()
        live.up()
        assert log.rest() == 0, log.lines
    live.cli("wait", "--timeout", "90s", job_id)
    # The follower lived through the kill: it saw every line once, as the log holds it.
    whole = live.cli("logs", job_id)
    assert sorted(losses(whole)) == list(range(1, 7))
    assert losses("\n".join(log.lines)) == losses(whole)
    assert losses(whole)[6] < losses(whole)[1]
    view = live.job(job_id)
    assert (view.state, view.attempt) == ("succeeded", 1)
    story = live.cli("story", job_id)
    order = ["submitted by", "placed", "of attempt 1 run", "started, run 2", "exited with"]
    places = [story.index(text) for text in order]
    assert places == sorted(places), story
    assert story.count("tasks 0, 1 of attempt 1 run") == 1, story
    events = live.cli("events", "--since", "0", "-o", "jsonl")
    assert events.count("ServerStarted") == 2
