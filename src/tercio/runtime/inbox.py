"""The one queue into the writer: requests of people, observations of engines, and time.

Requests are bounded: who asks when it is full waits at the door. Observations cannot wait,
and need no bound: a task ends once, and a node's repeated report replaces the one that was
not read yet.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice

from tercio.errors import UserError
from tercio.model.commands import AnyCommand
from tercio.model.events import AnyEvent, NodeEvent, NodeReported
from tercio.model.identity import Principal
from tercio.model.ids import JobId, NodeName
from tercio.runtime.clock import Clock


class Outcome:
    """What became of a command.

    Attributes:
        job_ids: of submits, in order; the first job again for a repeated submit.
        events: that it made, now durable.
    """

    __slots__ = ("events", "job_ids")

    def __init__(self) -> None:
        self.job_ids: list[JobId] = []
        self.events: list[AnyEvent] = []


class Request:
    """Commands of one asker that are done together, and where their answer goes."""

    __slots__ = ("answer", "commands", "principal", "secrets")

    def __init__(
        self,
        commands: Sequence[AnyCommand],
        principal: Principal,
        secrets: Sequence[Mapping[str, str]],
    ) -> None:
        self.commands = commands
        self.principal = principal
        self.secrets = secrets
        self.answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def succeed(self, outcome: Outcome) -> None:
        """Answer, unless the asker went away."""
        if not self.answer.done():
            self.answer.set_result(outcome)

    def fail(self, error: Exception) -> None:
        """Answer with an error, unless the asker went away."""
        if not self.answer.done():
            self.answer.set_exception(error)


def stopping() -> UserError:
    """Return the answer of a server that takes no more requests."""
    return UserError("the server is stopping", code="unavailable", hint="try again in a moment")


class Inbox:
    """See the module's description."""

    def __init__(self, clock: Clock, *, requests_max: int) -> None:
        self._clock = clock
        self._room = asyncio.Semaphore(requests_max)
        self._requests: deque[Request] = deque()
        self._count = 0
        self._observations: dict[int, AnyEvent] = {}
        self._newest_by_node: dict[NodeName, int] = {}
        self._arrived = asyncio.Event()
        self._alarm: asyncio.Task[None] | None = None
        self._alarm_s: float | None = None
        self._is_closed = False

    @property
    def depth(self) -> int:
        """Requests and observations that wait."""
        return len(self._requests) + len(self._observations)

    async def ask(self, request: Request) -> Outcome:
        """Put a request in, waiting for room, and return its answer.

        Raises:
            UserError: `unavailable` when the inbox is closed; else what the answer is.
        """
        async with self._room:
            if self._is_closed:
                raise stopping()
            self._requests.append(request)
            self._arrived.set()
            return await request.answer

    def deliver(self, event: AnyEvent) -> None:
        """Put an observation in; never waits."""
        self._count += 1
        node = _node_of(event)
        if node is not None:
            newest = self._newest_by_node.get(node, 0)
            is_repeat = isinstance(self._observations.get(newest), NodeReported)
            if is_repeat and isinstance(event, NodeReported):
                del self._observations[newest]
            self._newest_by_node[node] = self._count
        self._observations[self._count] = event
        self._arrived.set()

    def take(self, most: int) -> tuple[list[Request], list[AnyEvent]]:
        """Take out up to `most` of each, oldest first."""
        requests = [self._requests.popleft() for _ in range(min(most, len(self._requests)))]
        numbers = list(islice(self._observations, most))
        seen = [self._observations.pop(number) for number in numbers]
        if not self._observations:
            self._newest_by_node.clear()
        if not self.depth:
            self._arrived.clear()
        return requests, seen

    def take_requests(self) -> list[Request]:
        """Take out all requests and leave the observations."""
        requests = list(self._requests)
        self._requests.clear()
        if not self.depth:
            self._arrived.clear()
        return requests

    def give_back(self, observations: Sequence[AnyEvent]) -> None:
        """Put observations back at the front: their turn was refused by the journal."""
        newer = self._observations
        self._observations, self._newest_by_node = {}, {}
        for event in (*observations, *newer.values()):
            self.deliver(event)

    async def wait(self, until_s: float | None) -> None:
        """Return when something is there, or it is `until_s`."""
        self._set_alarm(until_s)
        await self._arrived.wait()

    def ring(self) -> None:
        """Let `wait` return."""
        self._arrived.set()

    def close(self) -> None:
        """Stop waiting for time; refuse the requests that nobody will take any more."""
        self._is_closed = True
        self._set_alarm(None)
        for request in self.take_requests():
            request.fail(stopping())

    def _set_alarm(self, at_s: float | None) -> None:
        is_same = at_s == self._alarm_s and self._alarm is not None and not self._alarm.done()
        if is_same:
            return
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._alarm_s = at_s
        if at_s is not None:
            self._alarm = asyncio.get_running_loop().create_task(self._ring_at(at_s))

    async def _ring_at(self, at_s: float) -> None:
        await self._clock.sleep_until(at_s)
        self._arrived.set()


def _node_of(event: AnyEvent) -> NodeName | None:
    match event:
        case NodeReported(spec=spec):
            return spec.name
        case NodeEvent(node=node):
            return node
        case _:
            return None
