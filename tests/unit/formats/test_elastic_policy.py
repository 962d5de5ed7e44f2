"""The key `elastic` of the policy file."""

from __future__ import annotations

import pytest

from tercio.errors import UserError
from tercio.formats.policy import read_policy, write_policy
from tercio.model.queue import ElasticPolicy


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("elastic: goodput", ElasticPolicy()),
        ("elastic: off", None),
        ("queues: {default: {}}", None),
        (
            "elastic: {fairness: 0.5, restart: 2m, period: 5m}",
            ElasticPolicy(fairness=0.5, restart_s=120.0, period_s=300.0),
        ),
        ("elastic: {turn: 2h}", ElasticPolicy(turn_s=7200.0)),
        ("elastic: {turn: off}", ElasticPolicy(turn_s=None)),
    ],
)
def test_it_is_read_and_written_back(text: str, expected: ElasticPolicy | None) -> None:
    policy = read_policy(text)
    assert policy.elastic == expected
    assert read_policy(write_policy(policy)) == policy


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("elastic: {fairness: 0}", "elastic.fairness"),
        ("elastic: {fairness: 3}", "elastic.fairness"),
        ("elastic: {period: 0s}", "elastic.period"),
        ("elastic: {turn: 0s}", "elastic.turn"),
        ("elastic: {speed: 1}", "elastic"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(text: str, field: str) -> None:
    with pytest.raises(UserError) as caught:
        read_policy(text)
    assert field in (caught.value.field or "")
