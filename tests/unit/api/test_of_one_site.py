"""Lists of one site where there are two: what runs there, what may start there, what is free."""

from __future__ import annotations

import time

import pytest
from live_server import SCRIPT, LiveServer, job

from tercio.client import Client
from tercio.engines.sim.engine import SimEngine
from tercio.errors import UserError
from tercio.model.events import ReservationAdded
from tercio.model.ids import SiteName
from tercio.testing.factories import make_node


def two_sites(clock, _):
    return {
        SiteName(site): SimEngine(
            site=SiteName(site),
            nodes=[make_node(node, devices=4, site=site)],
            clock=clock.now_s,
            script=SCRIPT,
        )
        for site, node in (("east", "e1"), ("west", "w1"))
    }


@pytest.fixture
def both(tmp_path):
    with LiveServer(tmp_path, engines=two_sites, nodes=("e1", "w1")) as live:
        yield live


def test_jobs_nodes_and_free_devices_of_one_site(both):
    with Client(both.url, both.admin_secret) as client:
        there = both.decided(client.submit(job("there", gpus="H100:4", sites=["west"])))
        both.decided(client.submit(job("here", gpus="H100:2", sites=["east"])))
        waits = both.decided(client.submit(job("waits", gpus="H100:4", sites=["west"])))
        client.submit(job("anywhere", hold=True))
        names = {
            site: sorted(row.name for row in client.jobs(site=site).rows)
            for site in ("east", "west")
        }
        assert names == {"east": ["anywhere", "here"], "west": ["anywhere", "there", "waits"]}
        assert client.job(there).sites == ("west",)
        assert client.job(waits).sites == ("west",)

        def rows(path):
            return both.request("GET", path, token=both.token("viewer")).body

        assert [row["name"] for row in rows("/v1/nodes?site=east")["rows"]] == ["e1"]
        free = {
            each["type"]: each["tasks"]
            for each in rows("/v1/topology?site=east&devices=1")["largest"]
        }
        assert free == {"H100": 2}
        assert rows("/v1/fleet?site=west")["nodes"] == 1
        with pytest.raises(UserError) as caught:
            client.jobs(site="wets")
        assert (caught.value.code, caught.value.field) == ("not_found", "site")
        assert "west" in (caught.value.hint or "")
        for path in ("nodes", "topology", "fleet", "queues", "queues/default", "gaps", "report"):
            assert (
                both.request("GET", f"/v1/{path}?site=x", token=both.token("viewer")).status == 404
            )


def test_queues_of_one_site_count_what_runs_there_and_what_may_start_there(both):
    with Client(both.url, both.admin_secret) as client:
        both.decided(client.submit(job("there", gpus="H100:4", sites=["west"])))
        both.decided(client.submit(job("here", gpus="H100:2", sites=["east"])))
        both.decided(client.submit(job("waits", gpus="H100:4", sites=["west"])))
        client.submit(job("anywhere", gpus="H100:1", hold=True))
        (whole,) = client.queues().rows
        (east,) = client.queues(site="east").rows
        (west,) = client.queues(site="west").rows
        assert (whole.used, whole.used_elsewhere) == ({"H100": 6.0}, {})
        assert (east.used, east.used_elsewhere) == ({"H100": 2.0}, {"H100": 4.0})
        assert (west.used, west.used_elsewhere) == ({"H100": 4.0}, {"H100": 2.0})
        assert (east.wanted, east.running, east.waiting) == ({"H100": 1.0}, 1, 1)
        assert (west.wanted, west.running, west.waiting) == ({"H100": 5.0}, 1, 2)
        assert east.entitled == west.entitled == whole.entitled
        asked = both.request("GET", "/v1/queues/default?site=west", token=both.token("viewer"))
        assert asked.body["used"] == {"H100": 4.0}


def test_a_gap_is_of_one_site_since_no_gang_spans_two(both):
    with Client(both.url, both.admin_secret) as client:
        for site in ("east", "west"):
            long = job(f"long-{site}", gpus="H100:2", sites=[site], time={"limit": "5h"})
            both.decided(client.submit(long))
        client.add_reservation(
            "demo", queue="default", gpus="H100:8", start=str(time.time() + 7200), duration="1h"
        )
        both.wait_for(ReservationAdded)
        rows = {
            site: [(row.site, row.devices, row.nodes) for row in client.gaps(site=site).rows]
            for site in ("east", "west")
        }
        assert rows == {"east": [("east", 2, ("e1",))], "west": [("west", 2, ("w1",))]}
        every = client.gaps().rows
        assert sorted((row.site, row.tasks) for row in every) == [("east", 1), ("west", 1)]


def test_the_report_of_one_site_is_of_what_was_held_there(both):
    with Client(both.url, both.admin_secret) as client:
        for site in ("east", "west"):
            both.decided(client.submit(job(f"at-{site}", gpus="H100:1", sites=[site])))

    def jobs(site):
        found = both.request("GET", f"/v1/report?by=job{site}", token=both.admin_secret).body
        return sorted(row["key"] for row in found["rows"])

    assert [jobs(site) for site in ("", "&site=east", "&site=west")] == [
        ["job-00001", "job-00002"],
        ["job-00001"],
        ["job-00002"],
    ]
