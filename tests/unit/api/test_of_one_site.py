"""Lists of one site where there are two: what runs there, what may start there, what is free."""

from __future__ import annotations

import pytest
from live_server import SCRIPT, LiveServer, job

from tercio.client import Client
from tercio.engines.sim.engine import SimEngine
from tercio.errors import UserError
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
        for path in ("nodes", "topology", "fleet"):
            assert (
                both.request("GET", f"/v1/{path}?site=x", token=both.token("viewer")).status == 404
            )
