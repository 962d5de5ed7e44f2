"""Keeps power budgets: looks at all readings again and again, and orders power limits.

What is ordered enters the journal first; a node gets its limits as the answer to its next
reading, and its reading after that confirms them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tercio.core.curves import wanted_limits
from tercio.core.driver import Driver
from tercio.core.healing import policy_of
from tercio.core.health_views import power_report
from tercio.core.powering import Asked, Seen, View, look, orders_of, power_events
from tercio.model.events import AnyEvent
from tercio.model.health_views import PowerReport
from tercio.model.ids import JobId, NodeName
from tercio.model.power import CapOrders
from tercio.model.reasons import Reason
from tercio.runtime.measuring import Measuring, Steps
from tercio.runtime.periodic import Periodic, every
from tercio.runtime.telemetry import STALE_POLLS, Telemetry


class Powering:
    """See the module's description; on the event loop only."""

    def __init__(
        self,
        *,
        driver: Callable[[], Driver],
        telemetry: Telemetry,
        deliver: Callable[[AnyEvent], None],
        now: Callable[[], float],
        poll_s: float = 10.0,
        steps: Steps = lambda _job, _attempt: None,
    ) -> None:
        self._driver = driver
        self._telemetry = telemetry
        self._deliver = deliver
        self._now = now
        self._poll_s = poll_s
        self._loop = Periodic("powering", self.look, pause=every(poll_s))
        self._since_s = now()
        self._revision = 0
        self._measuring = Measuring(steps)

    def start(self) -> None:
        """Begin to look again and again."""
        self._loop.start()

    async def stop(self) -> None:
        """Look no more; the limits stay as they are."""
        await self._loop.stop()

    def look(self) -> None:
        """Look once, and order what is due.

        After a start nothing is ordered until every node had the time to be heard: silence
        would take power from the others.
        """
        if self._now() - self._since_s < STALE_POLLS * self._poll_s:
            return
        cluster = self._driver().cluster
        known = [node.caps.revision for node in cluster.nodes.values() if node.caps is not None]
        self._revision = max(self._revision, *known, 0) + 1
        seen, asked = self.seen(), self.asked()
        for measured in self._measuring.look(cluster, seen, asked.wanted_w, self._now()):
            self._deliver(measured)
        for event in power_events(
            cluster,
            seen,
            policy=policy_of(cluster.health.settings),
            asked=asked,
            revision=self._revision,
            now_s=self._now(),
        ):
            self._deliver(event)

    def view(self) -> View:
        """Return all devices below budgets with the limits that are due, for people."""
        cluster = self._driver().cluster
        policy = policy_of(cluster.health.settings)
        return look(cluster, self.seen(), policy=policy, asked=self.asked())

    def report(self) -> PowerReport:
        """Return the budgets as they are now, for people."""
        drawn_w = {}
        view = self.view()
        seen = self.seen()
        for name, (node, index) in view.places.items():
            told = seen[node].devices.get(index) if node in seen else None
            if told is not None and told.power_w is not None:
                drawn_w[name] = told.power_w
        return power_report(self._driver().cluster, view, drawn_w=drawn_w)

    def orders(self, nodes: Sequence[NodeName]) -> CapOrders | None:
        """Return the limits that a machine is to keep, None where it is left alone."""
        known = self._driver().cluster.nodes
        return orders_of([known[name] for name in nodes if name in known])

    def seen(self) -> Mapping[NodeName, Seen]:
        """Return the fresh readings by node."""
        found = {}
        for name in self._driver().cluster.nodes:
            reading = self._telemetry.latest(name)
            if reading is not None:
                found[name] = Seen(reading.caps_revision, self._telemetry.devices(name))
        return found

    def asked(self) -> Asked:
        """Return the jobs that wait for power, in the order of their turn, and limits by class."""
        driver = self._driver()
        policy = policy_of(driver.cluster.health.settings)
        wanted_w: dict[JobId, int] = {}
        if policy.power_slowdown_ratio:
            bounds_w = self._measuring.bounds_w(
                driver.cluster, self.seen(), floor_ratio=policy.power_floor_ratio
            )
            wanted_w = wanted_limits(driver.cluster, policy, bounds_w=bounds_w)
        if not driver.cluster.policy.budgets:
            return Asked(wanted_w=wanted_w)
        waiting: list[JobId] = [
            job_id
            for job_id in driver.cluster.snapshot().waiting
            if (told := driver.briefs.get(job_id)) is not None and told.reason is Reason.POWER
        ]
        return Asked(waiting=waiting, wanted_w=wanted_w)
