"""Time alone changes a plan: it is made anew then, as a scheduler without memory would."""

from __future__ import annotations

from tercio.model.queue import QueueSpec
from tercio.model.reservation import Reservation
from tercio.testing import rules
from tercio.testing.build import cluster, gang
from tercio.testing.rounds import Rounds
