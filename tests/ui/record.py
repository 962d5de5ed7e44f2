"""Record what a server sends to a page: `python tests/ui/record.py > ui/test/recorded.json`."""

from __future__ import annotations

import http.client
import json
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from stage import Stage


class Follower(threading.Thread):
    """Reads the stream while things happen, as an open page does."""

    def __init__(self, stage: Stage, since: int) -> None:
        super().__init__()
        self.rows: list[dict[str, Any]] = []
        self._stage = stage
        self._since = since
        self.until: int | None = None

    def run(self) -> None:
        connection = http.client.HTTPConnection(
            "127.0.0.1", int(self._stage.url.rpartition(":")[2])
        )
        accept = {"Authorization": f"Bearer {self._stage.secret}", "Accept": "text/event-stream"}
        connection.request("GET", f"/v1/events?since={self._since}&views=true", headers=accept)
        for raw in connection.getresponse():
            if raw.startswith(b"data: {") and b'"event":' in raw:
                self.rows.append(json.loads(raw[6:]))
            if self.until is not None and self.rows and self.rows[-1]["seq"] >= self.until:
                break
        connection.close()


def lists(stage: Stage) -> dict[str, Any]:
    """Return the lists that a page reads first, and the sequence number they are of."""
    found: dict[str, Any] = {"seq": stage.seq}
    for name, query in (("jobs", "all=true&limit=1000"), ("nodes", "devices=true"), ("queues", "")):
        address = f"{stage.url}/v1/{name}?{query}"
        asked = urllib.request.Request(address, headers={"Authorization": f"Bearer {stage.secret}"})
        with urllib.request.urlopen(asked) as answer:
            found[name] = json.load(answer)["rows"]
    return found


def rest(stage: Stage) -> None:
    """Wait until nothing happens any more."""
    before = -1
    while before != stage.seq:
        before = stage.seq
        time.sleep(1)


def record() -> dict[str, Any]:
    """Play some hours on the demo's cluster; return the stream with the lists around it."""
    with tempfile.TemporaryDirectory() as state, Stage(Path(state) / "state") as stage:
        stage.fill()
        rest(stage)
        found = lists(stage)
        follower = Follower(stage, found["seq"])
        follower.start()
        with stage.client() as client:
            client.cordon("n7", reason="firmware")
            client.cancel("job-00005")
        for _ in range(4):
            stage.step(1500)
            stage.submit({"name": "late", "run": "x", "per_task": {"devices": "H100:2"}})
            rest(stage)
        with stage.client() as client:
            client.uncordon("n7")
        rest(stage)
        after = lists(stage)
        follower.until = after["seq"]
        with stage.client() as client:
            client.cordon("n1", reason="wakes the follower")
        follower.join()
        found["rows"] = [row for row in follower.rows if row["seq"] <= after["seq"]]
        found["after"] = {name: after[name] for name in ("jobs", "nodes")}
        return found


if __name__ == "__main__":
    json.dump(record(), sys.stdout, separators=(",", ":"))
    sys.stdout.write("\n")
