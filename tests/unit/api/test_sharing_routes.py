"""Policy plans, history and rollback, what-if, topology and reservations, over HTTP."""

from __future__ import annotations

import pytest
from live_server import job

from tercio.errors import UserError
from tercio.model.units import parse_instant_s

BASE = "queues: {default: {}, lab: {guarantee: {H100: 4}}}"


def set_policy(client, text, **options):
    return client.set_policy(text, if_version=client.policy().version, **options)


def test_a_policy_is_planned_set_and_rolled_back(server, client):
    set_policy(client, BASE)
    held = server.decided(client.submit(job("held", gpus="H100:4", queue="lab")))
    plan = client.policy_plan("queues: {default: {guarantee: {H100: 8}}, lab: {}}")
    assert (plan.version, plan.evicts, plan.starts) == (1, (), ())
    shares = {row.path: (row.before, row.after) for row in plan.queues}
    assert shares["lab"] == ({"H100": 4.0}, {"H100": 4.0})
    assert client.policy().version == 1
    set_policy(client, "queues: {default: {guarantee: {H100: 8}}, lab: {}}")
    old = client.policy(version=1)
    from tercio.formats.policy import write_policy

    back = set_policy(client, write_policy(old.policy))
    assert (back.version, back.policy) == (3, old.policy)
    rows = client.policy_history().rows
    assert [row.version for row in rows] == [3, 2, 1]
    assert rows[0].changed == ("default.guarantee", "lab.guarantee")
    assert rows[0].by == rows[2].by
    assert client.policy(version=0).policy.queues.keys() == {"default"}
    assert client.job(held).state in ("starting", "running")


def test_history_is_paged(client):
    for weight in (1, 2, 3):
        set_policy(client, f"queues: {{default: {{weight: {weight + 1}}}}}")
    first = client.policy_history(limit=2)
    assert [row.version for row in first.rows] == [3, 2]
    (last,) = client.policy_history(limit=2, after=first.next).rows
    assert (last.version, last.changed) == (1, ("default.weight",))


@pytest.mark.parametrize("verb", ["set_policy", "policy_plan"])
def test_guarantees_above_capacity_are_refused_with_their_line(client, verb):
    text = "queues:\n  default: {}\n  lab: {guarantee: {H100: 9}}"

    def ask(**options):
        if verb == "set_policy":
            return set_policy(client, text, source="p.yaml", **options)
        return client.policy_plan(text, source="p.yaml", **options)

    with pytest.raises(UserError) as caught:
        ask()
    assert caught.value.message == (
        "p.yaml:3: queues.lab.guarantee: guarantees of 9 H100, but the cluster has 8"
    )
    assert "--overcommit" in caught.value.hint
    (warning,) = ask(overcommit=True).warnings
    assert "9 H100 are more than the 8 H100" in warning


def test_what_can_never_fit_is_refused_at_submit(client):
    with pytest.raises(UserError) as caught:
        client.submit(job(gpus="H100:5"))
    assert caught.value.code == "never_fits"
    assert "the largest node has 4" in caught.value.message
    view = client.plan(job(gpus="H100:5"))
    assert view.outcome == "never"
    assert view.warnings == ("a submit is refused without --wait-for-capacity",)
    (job_id,) = client.submit(job(gpus="H100:5", overrides={"wait_for_capacity": True})).ids
    assert client.job(job_id).state == "queued"
    (more,) = client.submit(job(gpus="H100:4", tasks=3)).ids
    assert client.job(more).state == "queued"


def test_what_if_over_http(server, connect):
    ana = connect("user", user="ana", tenant="red")
    ana.submit(job("first", gpus="H100:3"))
    ana.submit(job("second", gpus="H100:3"))
    waits = server.decided(ana.submit(job("third", gpus="H100:2")))
    view = ana.what_if(waits, {"gpus": "1"})
    assert (view.outcome, view.changes, view.decision.job) == ("now", {"gpus": "1"}, waits)
    assert ana.job(waits).state == "queued"
    with pytest.raises(UserError, match="'gpsu' is not a change") as caught:
        ana.what_if(waits, {"gpsu": "1"})
    assert caught.value.field == "gpsu"
    eve = connect("user", user="eve", tenant="blue")
    with pytest.raises(UserError) as caught:
        eve.what_if(waits, {"gpus": "1"})
    assert caught.value.code == "not_found"


def test_topology_over_http(server, client):
    server.decided(client.submit(job(gpus="H100:3")))
    view = client.topology()
    assert view.per_task == {"H100": 4}
    assert [(row.level, row.free) for row in view.rows] == [("site", {"H100": 5.0})]
    assert [(g.level, g.tasks) for g in view.largest] == [("site", 1), ("node", 1)]
    pairs = client.topology(devices=1, has_nodes=True)
    assert sorted(row.fits["H100"] for row in pairs.rows if row.level == "node") == [1, 4]


def test_reservations_over_http(server, connect):
    client, ana = connect("operator", user="op"), connect("user", user="ana")
    view = client.add_reservation(
        "nightly", queue="default", gpus="H100:4", start="2100-01-01T00:00:00Z",
        duration="2h", every="1d",
    )  # fmt: skip
    assert (view.devices, view.type, view.duration_s, view.every_s) == (4, "H100", 7200, 86400)
    assert not view.is_open
    now = client.add_reservation("now", user="ana", type="H100", shape={"node": 1}, duration="1h")
    assert now.is_open
    first = ana.reservations(limit=1)
    assert [row.name for row in first.rows] == ["nightly"]
    assert [row.name for row in ana.reservations(after=first.next).rows] == ["now"]
    (job_id,) = connect("user", user="bob").submit(job("bob", gpus="H100:4")).ids
    assert client.job(job_id).state == "queued" or client.job(job_id).nodes
    other = server.decided(connect("user", user="bob").submit(job("more", gpus="H100:4")))
    assert client.decision(other).decision.reason.value == "Reserved"
    client.remove_reservation("now")
    with pytest.raises(UserError) as caught:
        client.remove_reservation("now")
    assert caught.value.code == "not_found"


def test_a_reservation_says_when_all_together_ask_for_more_than_there_is(client):
    """Two nodes of four devices."""
    when = {"queue": "default", "start": "2100-01-01T00:00:00Z", "duration": "1h"}
    assert client.add_reservation("a", gpus="7", **when).warnings == ()
    (warning,) = client.add_reservation("b", gpus="2", **when).warnings
    assert "ask for 9 devices and the cluster has 8; open with it: a" in warning


def test_gaps_before_what_is_kept(server, connect):
    client = connect("operator", user="op")
    assert client.gaps().rows == ()
    client.add_reservation(
        "nightly", queue="default", gpus="H100:8", start="2100-01-01T00:00:00Z", duration="2h"
    )
    server.decided(client.submit(job("long", gpus="H100:1", time={"limit": "2h"})))
    viewer = connect("viewer", user="eve")
    rows = viewer.gaps().rows
    now, later = rows
    assert (now.type, now.devices, len(now.nodes), now.reservation) == ("H100", 7, 2, "nightly")
    assert (now.tasks, now.per_task) == (1, 4)
    assert later.devices == 1
    assert later.from_s > now.from_s
    assert now.until_s == later.until_s == parse_instant_s("2100-01-01T00:00:00Z")
    assert now.until_s - 120 <= now.from_s + now.limit_s <= now.until_s - 60
    assert now.device_hours == pytest.approx(7 * (now.until_s - now.from_s) / 3600)
    first = viewer.gaps(limit=1)
    assert [row.devices for row in viewer.gaps(after=first.next).rows] == [1]
    client.remove_reservation("nightly")
    server.decided(client.submit(job("next", gpus="H100:1")))
    assert client.gaps().rows == ()


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"gpus": "H100:0.5", "duration": "1h"}, "gpus"),
        ({"gpus": "H100:1|L4:1", "duration": "1h"}, "gpus"),
        ({"gpus": "H100:1", "duration": "soon"}, "duration"),
        ({"gpus": "H100:1", "duration": "1h", "start": "soon"}, "start"),
        ({"gpus": "H100:1", "duration": "1h", "every": "1m"}, "every_s"),
    ],
)
def test_a_bad_reservation_is_refused_with_its_field(client, fields, field):
    with pytest.raises(UserError) as caught:
        client.add_reservation("r", queue="default", **fields)
    assert caught.value.field == field
    assert caught.value.hint


def test_queues_show_what_is_borrowed_and_wanted(server, client):
    set_policy(client, "queues: {default: {}, lab: {guarantee: {H100: 4}}}")
    for _ in range(2):
        client.submit(job(gpus="H100:4", queue="default", preemptible=False, time={"limit": "1h"}))
    server.decided(client.submit(job(gpus="H100:3", queue="default")))
    views = {view.path: view for view in client.every_queue()}
    assert views["default"].borrowed == {"H100": 8.0}
    assert views["default"].wanted == {"H100": 3.0}
    assert views["lab"].lent == {"H100": 4.0}
    assert views["default"].entitled == {"H100": 8.0}


def test_accuracy_of_start_estimates_is_told(client):
    found = client.start_accuracy()
    assert (found.rows, found.since_s) == ((), None)
    assert (found.low_ratio, found.mid_ratio, found.high_ratio) == (0.5, 1.0, 1.5)
