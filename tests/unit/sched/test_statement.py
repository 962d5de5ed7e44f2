"""A failed attempt leaves the state bit by bit as it was."""

import numpy as np

from tercio.model.ids import JobId
from tercio.model.queue import Policy, QueueSpec
from tercio.sched.fairshare import QueueTree
from tercio.sched.gang import Gang, Room
from tercio.sched.holds import Holds
from tercio.sched.memory import Memory
from tercio.sched.need import compile_shape
from tercio.sched.owners import Owner
from tercio.sched.statement import Statement
from tercio.sched.table import Table
from tercio.testing.build import cluster, gang
from tercio.testing.rounds import Rounds


def table() -> Table:
    found = Table(Policy().topology, 8000, 64 * 2**30)
    found.add_nodes(cluster("2r x 4n x 8g"))
    return found


def place(t: Table, statement: Statement, spec: str, **more: str) -> bool:
    memory = Memory()
    memory.table = t
    shape = compile_shape(gang(spec, **more), t)
    needs = shape.needs(shape.combinations[0])
    room = Room({n: memory.fit(n) for n in needs}, Holds(t, lambda _: float("inf")))
    most = {leaf.index: leaf.tasks for leaf in shape.leaves}
    return Gang(t, room, statement, JobId("x"), needs).place(shape, most) is not None


def test_rollback_restores_every_column():
    t = table()
    before = t.state_hash()
    statement = Statement(t)
    assert place(t, statement, "3x8")
    middle, mark = t.state_hash(), statement.mark()
    assert place(t, statement, "4x2", same="rack")
    assert t.state_hash() not in (before, middle)
    statement.rollback(mark)
    assert t.state_hash() == middle
    statement.rollback()
    assert t.state_hash() == before


def test_a_gang_that_does_not_fit_leaves_no_trace():
    t = table()
    before = t.state_hash()
    assert not place(t, Statement(t), "5x8", same="rack")
    assert not place(t, Statement(t), "9x8")
    assert t.state_hash() == before


def test_commit_keeps_tasks_and_eviction_gives_them_back():
    t = table()
    before = t.state_hash()
    statement = Statement(t)
    assert place(t, statement, "1x8")
    statement.commit()
    ((job, _), task) = next(iter(t.tasks[0].items()))
    statement.evict(0, job, task)
    assert t.state_hash() == before
    statement.commit()
    assert not t.tasks[0]


def test_charges_are_undone():
    tree = QueueTree(Policy(queues={"a": QueueSpec(user_limit={"devices": 8000})}))
    node = tree.at("a")  # type: ignore[arg-type]
    statement = Statement(table())
    statement.charge(node, Owner("ana", "default"), {"devices": 3000}, is_firm=True)
    assert (node.use, tree.root.use, node.users["ana"]) == ({"devices": 3000},) * 3
    statement.rollback()
    assert (node.use, node.firm, tree.root.use) == ({}, {}, {})


def test_hundred_failed_attempts_do_not_hide_a_free_rack():
    """A rack stays placeable after attempts of other jobs failed in many earlier cycles."""
    r = Rounds(cluster("2r x 18n x 4g"), Policy(half_life_s=0.0))
    for at in range(18):
        r.submit(f"fill{at}", gang("1x4", match="labels['rack'] == 'r1'"))
    r.cycle()
    for at in range(100):
        r.submit(f"no{at}", gang("19x4", same="rack", exclude=(f"n{at % 18 + 1}",)))
        r.cycle()
    r.submit("yes", gang("16x4", same="rack"))
    r.cycle()
    assert all(int(name[1:]) > 18 for name in r.where("yes"))


def test_columns_follow_a_changed_node():
    t = table()
    statement = Statement(t)
    assert place(t, statement, "1x8")
    statement.commit()
    held = t.state_hash()
    t.set_node(0, t.nodes[0])
    assert t.state_hash() == held
    assert int(np.sum(t.untouched)) == 56
