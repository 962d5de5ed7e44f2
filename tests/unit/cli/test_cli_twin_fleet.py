"""`tercio twin fleet`: health policies beside each other on a fleet with known truth."""

from __future__ import annotations

import json

import pytest

from tercio.health.policy import HealthPolicy, Mode
from tercio.twin.health_compare import compare_health
from tercio.twin.health_fleet import Fleet, live

SMALL = ("--nodes", "30", "--months", "2", "--days", "10")


def test_each_policy_meets_the_same_troubles_and_is_told_beside_the_first(tercio):
    lemons = ("--lemons", "0.2", "--lemon-factor", "40")
    code, out, _ = tercio("twin", "fleet", *SMALL, *lemons, "-o", "json")
    assert code == 0
    body = json.loads(out)
    assert (body["kind"], body["lives"], body["fleet"]["nodes"]) == ("TwinFleet", 2, 30)
    shadow, act, command = body["policies"]
    assert [row["policy"] for row in (shadow, act, command)] == [
        "mode=shadow", "mode=act", "mode=act,repairs=command",
    ]  # fmt: skip
    assert shadow["difference"] is None
    gap = act["figures"]["lost_h"] - shadow["figures"]["lost_h"]
    assert act["difference"]["mean"] == pytest.approx(gap)
    assert shadow["figures"]["quarantines"] == 0 < act["figures"]["quarantines"]
    table = tercio("twin", "fleet", *SMALL, *lemons).out
    for words in ("LEMONS FOUND", "mode=act,repairs=command", "57,600", "means of 2 lives"):
        assert words in table


def test_settings_and_a_bad_release_are_taken(tercio):
    options = ("--policy", "mode=act", "--policy", "mode=act,drain_budget_ratio=0.5")
    release = ("--release-day", "2", "--release-for", "12h", "--seed", "4")
    answer = tercio("twin", "fleet", *SMALL, *options, *release, "-o", "json")
    body = json.loads(answer.out)
    assert [row["policy"] for row in body["policies"]] == [options[1], options[3]]
    assert (body["fleet"]["release_day"], body["fleet"]["release_s"]) == (2.0, 43_200.0)
    calm = json.loads(tercio("twin", "fleet", *SMALL, *options, "--seed", "4", "-o", "json").out)
    strikes = [row["figures"]["strikes"] for row in (body["policies"][0], calm["policies"][0])]
    assert strikes[0] > strikes[1]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--policy", "mode=maybe"), "mode"),
        (("--policy", "foo=1"), "foo"),
        (("--policy", "act"), "NAME=VALUE"),
        (("--release-day", "40"), "release-day"),
        (("--notice", "0s"), "notice"),
        (("--lemons", "2"), "lemons"),
    ],
)
def test_mistakes_are_named(tercio, options, word):
    code, _, err = tercio("twin", "fleet", *SMALL, *options)
    assert (code, word in err) == (2, True), err


def test_the_comparison_is_that_of_the_lives():
    fleet = Fleet(nodes=20, days=5.0)
    told: list[tuple[int, int]] = []
    rows = compare_health(
        fleet, {"a": HealthPolicy(), "b": HealthPolicy(mode=Mode.ACT)}, lives=2, seed=7,
        tell=lambda done, whole: told.append((done, whole)),
    )  # fmt: skip
    lost = [live(fleet, HealthPolicy(), seed=seed).lost_h for seed in (7, 8)]
    assert rows[0].figures["lost_h"] == pytest.approx(sum(lost) / 2)
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
