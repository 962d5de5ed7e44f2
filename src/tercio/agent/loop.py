"""Poll, tell, remember what could not be told.

While the server is away, kernel lines wait in a bounded buffer and the cursor of the kernel log
stays where it was: nothing is lost, and what is told twice is known by its number. Old values of
devices are not kept: they would be shown as new ones.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from tercio.collect.watch import Watcher, only_lines
from tercio.errors import TercioError
from tercio.model.health_views import ReadingsAnswer
from tercio.model.readings import NodeReading

BUFFER_MAX: Final = 2000
"""Readings with kernel lines that wait; the oldest go first, and the log is read again then."""
_PAUSE_MAX_S: Final = 300.0


Tell = Callable[[bytes], bytes]
"""Sends a reading as JSON and returns the server's answer. Raises TercioError."""


class Agent:
    """See the module's description.

    Attributes:
        newest: the last reading, for the exporter.
        waiting: readings that could not be told yet.
    """

    def __init__(
        self,
        *,
        watcher: Watcher,
        tell: Tell | None,
        poll_s: float,
        note: Callable[[str], None],
    ) -> None:
        """Choose where to tell.

        Args:
            watcher: reads this machine.
            tell: tells the server; None tells nobody, for an exporter alone.
            poll_s: between two polls, until the server says otherwise.
            note: says something to people; each thing once.
        """
        self.newest: NodeReading | None = None
        self.waiting: deque[NodeReading] = deque(maxlen=BUFFER_MAX)
        self._watcher = watcher
        self._send = tell
        self._poll_s = poll_s
        self._note = note
        self._noted = ""
        self._failures = 0

    def poll(self) -> bool:
        """Read once and tell; return whether the server knows everything now."""
        reading = self._watcher.poll()
        self.newest = reading
        for what, why in reading.notes.items():
            self._say(f"{what}: {why}")
        if self._send is None:
            self._watcher.keep(None)
            self._watcher.delivered()
            return True
        try:
            while self.waiting:
                self._tell(self.waiting[0])
                self.waiting.popleft()
            self._tell(reading)
        except TercioError as error:
            self._failures += 1
            self._say(f"the server was not told: {error}")
            if reading.lines:
                self.waiting.append(only_lines(reading))
            return False
        self._failures = 0
        self._watcher.delivered()
        return True

    def run(self, ending: threading.Event) -> None:
        """Poll until `ending` is set."""
        while not ending.is_set():
            self.poll()
            ending.wait(self.pause_s)

    def close(self) -> None:
        """End the child process."""
        self._watcher.close()

    @property
    def pause_s(self) -> float:
        """Time to the next poll: longer while the server is away, up to five minutes."""
        if self._failures < 3:
            return self._poll_s
        return min(self._poll_s * 2.0 ** (self._failures - 2), max(_PAUSE_MAX_S, self._poll_s))

    def _tell(self, reading: NodeReading) -> None:
        assert self._send is not None
        answer = msgspec.json.decode(self._send(msgspec.json.encode(reading)), type=ReadingsAnswer)
        self._poll_s = max(answer.poll_s, 0.05)
        self._watcher.keep(answer.caps)
        self._watcher.tell_jobs(answer.jobs)

    def _say(self, text: str) -> None:
        if text != self._noted:
            self._noted = text
            self._note(text)
