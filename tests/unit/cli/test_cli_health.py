"""What health commands send and print, against a recorded server."""

import json

import pytest

from tercio.cli.commands.health import parse_settings
from tercio.errors import UserError
from tercio.model.health_views import (
    HealthDecision,
    HealthPlanView,
    HealthPolicyView,
    LiveList,
    LiveNode,
    RmaReport,
    RmaRow,
)
from tercio.model.readings import DeviceTelemetry
from tercio.model.report_views import UseReport, UseRow


def row(key, **ms):
    zero = dict.fromkeys(
        ("starting_ms", "restarting_ms", "stopping_ms", "checkpoint_ms", "hung_ms", "lost_ms",
         "failed_ms"), 0,
    )  # fmt: skip
    named = {**zero, "idle_ms": None, "useful_ms": 7_200_000, "allocated_ms": 7_200_000, **ms}
    return UseRow(key=key, jobs=2, **named)


def test_settings_are_words_numbers_and_spans():
    assert parse_settings(("mode=act", "loop_count=3", "breaker_ratio=0.2", "probation_s=2h")) == {
        "mode": "act", "loop_count": 3, "breaker_ratio": 0.2, "probation_s": 7200.0,
    }  # fmt: skip
    with pytest.raises(UserError, match="'act' is no setting"):
        parse_settings(("act",))
    with pytest.raises(UserError, match="idle_limit_s: '2x' is not a duration"):
        parse_settings(("idle_limit_s=2x",))


def test_health_shows_the_mode_first(server, tercio):
    view = HealthPolicyView(
        version=0, settings={}, effective={"mode": "shadow", "loop_count": 5, "probation_s": 86400}
    )
    server.on("GET", "/v1/health-policy", view)
    code, out, _ = tercio("health")
    assert code == 0
    assert out.splitlines()[0].endswith("nothing is done")
    assert "1d  (default)" in out


def test_a_plan_names_node_action_and_brake(server, tercio):
    decision = HealthDecision(
        node="n2", order="quarantine", action="reboot_node", reason="Xid 79", held_by="drain_budget"
    )
    server.on("POST", "/v1/health-policy/plan", HealthPlanView(settings={}, rows=(decision,)))
    code, out, _ = tercio("health", "policy", "plan", "mode=act")
    assert code == 0
    assert json.loads(server.requests[-1].body) == {"settings": {"mode": "act"}}
    assert out.splitlines()[1].split()[:4] == ["n2", "quarantine", "reboot_node", "drain_budget"]


def test_the_report_prints_hours_and_exact_csv(server, tercio):
    report = UseReport(
        by="user", since_s=1.0, until_s=2.0, rows=(row("ana", wasted_ms=90_000),), total=row("all")
    )
    server.on("GET", "/v1/report", report)
    code, out, err = tercio("report", "usage")
    assert code == 0
    assert "2.00h" in out
    assert "1.5m" in out
    assert "idle time is unknown" in err
    code, out, _ = tercio("report", "usage", "-o", "csv")
    assert "7200000" in out


def test_live_lines_show_load_holder_and_fault():
    from tercio.cli.health import device_line

    busy = DeviceTelemetry(
        index=0, utilization_ratio=0.8, power_w=350.0, power_limit_w=700.0, temperature_c=71.0,
        throttle_mask=0x40,
    )  # fmt: skip
    text = device_line(0, busy, ("job-1",))
    assert "80%" in text
    assert "350/700W" in text
    assert "job-1  hw thermal" in text
    lost = device_line(1, DeviceTelemetry(index=1, fault="GPU is lost"), ())
    assert lost.endswith("GPU is lost")
    assert "0%" not in lost
    node = LiveNode(node="n1", devices={0: busy})
    assert LiveList(rows=(node,)).rows[0].devices[0].power_w == 350.0


def test_parts_to_send_back_are_listed_by_serial_and_exported(server, tercio):
    part = RmaRow(
        serial="1650301", type="H100", node="n2", device=0, faults=2, first_s=1.0, last_s=2.0,
        severity="fatal", codes=("Xid 79 x2",), repairs=("reboot_node failed",), advice="replace",
        why="79 struck device 1650301 2 times in 720 h", evidence="NVRM: Xid",
    )  # fmt: skip
    server.on("GET", "/v1/rma", RmaReport(since_s=0.0, until_s=3.0, rows=(part,)))
    code, out, _ = tercio("health", "rma")
    assert code == 0
    assert out.splitlines()[1].split()[:3] == ["1650301", "H100", "n2"]
    assert "replace" in out
    code, out, _ = tercio("health", "rma", "-o", "csv")
    head, line = out.splitlines()
    assert head.startswith("serial,type,node")
    assert "Xid 79 x2" in line
    assert "NVRM: Xid" in line


def test_a_maintenance_window_is_sent_with_its_nodes_and_told(server, tercio):
    from tercio.model.sharing_views import ReservationView

    view = ReservationView(
        name="w", from_s=1.0, duration_s=14_400.0, nodes=("n1", "n2"), window=(1.0, 14_401.0)
    )
    server.on("POST", "/v1/reservations", view)
    code, _, err = tercio(
        "node", "maintain", "n1", "n2", "--from", "+2h", "--for", "4h", "--reason", "firmware"
    )
    assert code == 0
    body = json.loads(server.requests[-1].body)
    assert (body["nodes"], body["duration"], body["reason"]) == (["n1", "n2"], "4h", "firmware")
    assert body["name"].startswith("maintenance-n1-")
    assert "window w for 2 nodes opens now, for 4h" in err
