"""The columns of the needs used last, rated as the policy and the usual mix of work ask for."""

from __future__ import annotations

from typing import Final

from tercio.model.queue import Policy
from tercio.model.snapshot import MixEntry
from tercio.sched.feasible import Fit
from tercio.sched.fragmentation import Fragmentation
from tercio.sched.need import Need
from tercio.sched.score import RowScore, rating, row_rating
from tercio.sched.table import Table

MAX_FITS: Final = 512
"""Most needs whose columns are kept."""


class Fits:
    """See the module's description."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._found: dict[Need, Fit] = {}
        self._rating = rating(policy)
        self._row_rating: RowScore | None = row_rating(policy)
        self._fragmentation: Fragmentation | None = None
        self._mix: tuple[MixEntry, ...] = ()

    def of(self, need: Need, table: Table) -> Fit:
        """The columns of a need on a table, always the same one."""
        found = self._found.pop(need, None)
        if found is None:
            found = Fit(need, table, self._rating, self._row_rating)
            found.fragmentation = self._fragmentation
            if len(self._found) >= MAX_FITS:
                del self._found[next(iter(self._found))]
        self._found[need] = found
        return found

    def load_mix(self, mix: tuple[MixEntry, ...], table: Table) -> bool:
        """Rate by fragmentation when the policy says so and the mix is known; whether it did."""
        if self._policy.placement.pack != "fragmentation":
            return False
        known = self._fragmentation
        is_current = not mix or (known is not None and known.is_current())
        if is_current and (mix is self._mix or mix == self._mix):
            return False
        self._mix = mix
        share = self._policy.default_share.cpus_milli_per_device
        known = Fragmentation(mix, table, share) if mix else None
        self._fragmentation = known
        self._rating = rating(self._policy) if known is None else known.rate
        self._row_rating = row_rating(self._policy) if known is None else None
        self._found.clear()
        return True
