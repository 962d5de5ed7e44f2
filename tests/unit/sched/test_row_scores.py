"""One row is rated like all rows, and a class that was empty is like a new one."""

from __future__ import annotations

import numpy as np
import pytest

from tercio.model.ids import JobId
from tercio.model.queue import PlacementPolicy, Policy
from tercio.sched.devices import task_on
from tercio.sched.feasible import Fit
from tercio.sched.need import compile_shape
from tercio.sched.score import rating, row_rating
from tercio.sched.table import Table
from tercio.testing.build import cluster, gang
from tercio.testing.rounds import Rounds


def empty_table() -> Table:
    table = Table(Policy().topology, 8000, 64 * 2**30)
    table.add_nodes(cluster("2r x 4n x 8g"))
    return table


@pytest.mark.parametrize("pack", ["bestfit", "spread"])
@pytest.mark.parametrize("spec", ["1x2", "1x8"])
def test_a_row_alone_is_rated_like_all_of_them(pack: str, spec: str) -> None:
    policy = Policy(placement=PlacementPolicy(pack=pack))
    table = empty_table()
    need = compile_shape(gang(spec), table).leaves[0].needs[0]
    by_row = Fit(need, table, rating(policy), row_rating(policy)).refresh()
    one = compile_shape(gang("1x1"), table).leaves[0].needs[0]
    holder = Fit(one, table, rating(policy), None)
    for row in range(table.count):
        for number in range(row):  # every row holds another number of tasks
            task = task_on(holder.refresh(), row, task=number, group=0)
            assert task is not None
            table.hold(row, JobId(f"job-{row}"), task)
        by_row.refresh()
    whole = Fit(need, table, rating(policy), None).refresh()
    assert np.array_equal(by_row.fits, whole.fits)
    assert np.array_equal(by_row.key, whole.key)
    assert len(set(whole.key.tolist())) > 1


def test_a_class_that_was_empty_waits_like_a_new_one() -> None:
    """Its second job is told its reason anew, though the first was told the same."""
    rounds = Rounds(cluster("1n x 8g"), Policy())
    rounds.submit("hog", gang("1x8"))
    rounds.cycle()
    for name in ("first", "second"):
        rounds.submit(name, gang("1x8"))
        assert JobId(name) in rounds.cycle().reason_changes
        rounds.cancel(name)
        rounds.cycle()
