from __future__ import annotations

import asyncio

from live_world import ANN, run
from tercio.model.commands import HoldJob
from tercio.model.events import NodeLost, NodeReported, TaskExited
from tercio.model.ids import JobId, NodeName
from tercio.runtime.clock import SteppedClock
from tercio.runtime.inbox import Inbox, Outcome, Request
from tercio.testing.factories import make_node


def reported(name: str, devices: int = 8) -> NodeReported:
    return NodeReported(at_s=1.0, spec=make_node(name, devices=devices))


def lost(name: str) -> NodeLost:
    return NodeLost(at_s=1.0, node=NodeName(name), reason="x")


def test_repeated_report_replaces_the_unread_one_but_keeps_the_order_with_a_loss() -> None:
    async def test() -> None:
        inbox = Inbox(SteppedClock(), requests_max=2)
        ended = TaskExited(at_s=1.0, job_id=JobId("job-00001"), attempt=1, task=0)
        for event in (
            reported("n1", 1), reported("n2"), reported("n1", 2), ended, lost("n1"),
            reported("n1", 3), reported("n1", 4),
        ):  # fmt: skip
            inbox.deliver(event)
        _, seen = inbox.take(100)
        assert seen == [reported("n2"), reported("n1", 2), ended, lost("n1"), reported("n1", 4)]
        inbox.deliver(reported("n1", 5))
        inbox.give_back([lost("n1"), reported("n1", 4)])
        assert inbox.take(100)[1] == [lost("n1"), reported("n1", 5)]

    run(test())


def test_requests_wait_at_the_door_when_it_is_full() -> None:
    async def test() -> None:
        inbox = Inbox(SteppedClock(), requests_max=2)
        requests = [Request([HoldJob(job_id=JobId("j"))], ANN, [{}]) for _ in range(3)]
        tasks = [asyncio.create_task(inbox.ask(request)) for request in requests]
        await asyncio.sleep(0)
        assert inbox.depth == 2
        taken, _ = inbox.take(1)
        assert taken == requests[:1]
        taken[0].succeed(Outcome())
        await tasks[0]
        await asyncio.sleep(0)
        assert inbox.depth == 2
        tasks[1].cancel()
        await asyncio.gather(tasks[1], return_exceptions=True)
        requests[1].succeed(Outcome())
        requests[1].fail(ValueError())
        assert inbox.take_requests() == requests[1:]
        requests[2].fail(ValueError("no"))
        assert isinstance((await asyncio.gather(tasks[2], return_exceptions=True))[0], ValueError)

    run(test())


def test_wait_ends_at_the_time_or_when_something_comes() -> None:
    async def test() -> None:
        clock = SteppedClock(100.0)
        inbox = Inbox(clock, requests_max=2)
        waiting = asyncio.create_task(inbox.wait(110.0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        clock.advance(105.0)
        await asyncio.sleep(0)
        assert not waiting.done()
        clock.advance(111.0)
        await waiting
        inbox.take(1)
        waiting = asyncio.create_task(inbox.wait(None))
        await asyncio.sleep(0)
        inbox.deliver(lost("n1"))
        await waiting
        inbox.close()

    run(test())


def test_closed_inbox_leaves_nobody_waiting() -> None:
    async def test() -> None:
        inbox = Inbox(SteppedClock(), requests_max=1)
        requests = [Request([HoldJob(job_id=JobId("j"))], ANN, [{}]) for _ in range(3)]
        tasks = [asyncio.create_task(inbox.ask(request)) for request in requests]
        await asyncio.sleep(0)
        inbox.close()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert [getattr(answer, "code", None) for answer in answers] == ["unavailable"] * 3

    run(test())
