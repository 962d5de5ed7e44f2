"""A shadow of worlds full of trouble: it follows them, breaks no rule, and comes to an end."""

from __future__ import annotations

import pytest

from tercio.core.cluster import Cluster
from tercio.core.invariants import check
from tercio.core.promises import check_policy
from tercio.errors import UserError
from tercio.model.job import TERMINAL_JOB_STATES
from tercio.twin.draws import draw_policy
from tercio.twin.fuzz import Game
from tercio.twin.rng import Stream
from tercio.twin.shadow import Shadow

# 70: a suspended job loses its node, so that nobody resumes it.
SEEDS = (3, 70, 91)


@pytest.mark.parametrize("is_wide", [False, True], ids=["plain", "wide"])
@pytest.mark.parametrize("seed", SEEDS)
def test_it_follows_a_world_of_trouble(seed: int, *, is_wide: bool) -> None:
    game = Game(seed, jobs=12, is_wide=is_wide)
    game.play()
    journal = game.journal
    stream = Stream(seed, "shadow")
    begin = 2 + len(game.nodes) + stream.whole(len(journal) // 3)
    cluster = Cluster()
    for entry in journal[:begin]:
        cluster.apply(entry.event)
    policy = draw_policy(stream, game.nodes)
    try:
        check_policy(cluster, policy)
    except UserError:
        policy = cluster.policy
    shadow = Shadow(cluster.image(), policy, seq=journal[begin - 1].seq, lag_s=600.0)
    for at in range(begin, len(journal), 7):
        shadow.take(journal[at : at + 7])
        check(shadow.loop.driver.cluster)
    shadow.settle(journal[-1].event.at_s + 30 * 86_400)
    report = shadow.report()
    assert report.seq == journal[-1].seq
    assert report.waits_for is None
    jobs = shadow.loop.driver.cluster.jobs.values()
    left = [job.id for job in jobs if job.state not in TERMINAL_JOB_STATES]
    waiting = [name for name in left if shadow.loop.driver.cluster.is_waiting(name)]
    assert left == waiting, "what has started ends; some may never fit under the other policy"
