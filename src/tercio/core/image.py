"""The checkpoint: the whole state as bytes, and back, bit for bit."""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from tercio.core import maintaining
from tercio.core.ledger import Ledger
from tercio.core.members import REPAIR_GRACE_S
from tercio.core.mix import Mix
from tercio.core.prices import Prices
from tercio.core.records import Job
from tercio.core.run_times import RunTimes
from tercio.core.saving import Wear
from tercio.core.state import (
    EFFECT_TIMER,
    FENCE_TIMER,
    LIMIT_TIMER,
    MAINTENANCE_TIMER,
    REPAIR_TIMER,
    SLICE_TIMER,
    State,
)
from tercio.core.told import StartRecord
from tercio.errors import StoreError
from tercio.forecast.lengths import Lengths
from tercio.model.effects import AnyEffect, LaunchTask, ReconfigureDevice
from tercio.model.grid import GridSeries
from tercio.model.health import HealthState
from tercio.model.identity import Token
from tercio.model.ids import EffectId
from tercio.model.job import ACTIVE_JOB_STATES, TERMINAL_JOB_STATES
from tercio.model.node import Node
from tercio.model.queue import Policy
from tercio.model.reservation import Promise, Reservation

IMAGE_VERSION: Final = 1


class StateImage(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept. Everything else in `State` is derived from it."""

    image_version: int
    now_s: float
    epoch: int
    jobs_submitted: int
    revision: int
    jobs: list[Job]
    nodes: list[Node]
    policy: Policy
    policy_version: int
    promises: tuple[Promise, ...]
    tokens: list[Token]
    ledger: Ledger
    open_effects: list[AnyEffect]
    effect_tries: dict[EffectId, int]
    mix: Mix = msgspec.field(default_factory=Mix)
    run_times: RunTimes = msgspec.field(default_factory=RunTimes)
    lengths: Lengths = msgspec.field(default_factory=Lengths)
    starts: StartRecord = msgspec.field(default_factory=StartRecord)
    reservations: list[Reservation] = []
    held_launches: list[LaunchTask] = []
    wear: Wear = msgspec.field(default_factory=Wear)
    health: HealthState = msgspec.field(default_factory=HealthState)
    prices: GridSeries = GridSeries()


def encode_state(state: State) -> bytes:
    """Encode the state canonically: equal states give equal bytes."""
    return msgspec.msgpack.encode(
        StateImage(
            image_version=IMAGE_VERSION,
            now_s=state.now_s,
            epoch=state.epoch,
            jobs_submitted=state.jobs_submitted,
            revision=state.revision,
            jobs=list(state.jobs.values()),
            nodes=list(state.nodes.values()),
            policy=state.policy,
            policy_version=state.policy_version,
            promises=state.promises,
            tokens=list(state.tokens.values()),
            ledger=state.ledger,
            open_effects=list(state.open_effects.values()),
            effect_tries=state.effect_tries,
            mix=state.mix,
            run_times=state.run_times,
            reservations=list(state.reservations.values()),
            wear=state.wear,
            starts=state.starts,
            lengths=state.lengths,
            held_launches=list(state.held_launches.values()),
            health=state.health,
            prices=state.prices.series,
        )
    )


def hash_of(image: bytes) -> str:
    """Return the digest of the state in an image.

    The round trip writes numbers in one way: a whole number in a float field is a float.
    """
    kept = msgspec.msgpack.decode(image, type=StateImage)
    return hashlib.sha256(msgspec.msgpack.encode(kept)).hexdigest()


def decode_state(image: bytes) -> State:
    """Rebuild a state from its image.

    Raises:
        StoreError: the image is damaged or of another version.
    """
    try:
        kept = msgspec.msgpack.decode(image, type=StateImage)
    except msgspec.MsgspecError as error:
        raise StoreError(f"the checkpoint cannot be read: {error}") from error
    if kept.image_version != IMAGE_VERSION:
        raise StoreError(f"the checkpoint has version {kept.image_version}, not {IMAGE_VERSION}")
    state = State()
    state.now_s, state.epoch = kept.now_s, kept.epoch
    state.jobs_submitted = kept.jobs_submitted
    state.policy, state.policy_version = kept.policy, kept.policy_version
    state.promises, state.ledger = kept.promises, kept.ledger
    state.nodes = {node.name: node for node in kept.nodes}
    state.tokens = {token.token_id: token for token in kept.tokens}
    state.open_effects = {effect.effect_id: effect for effect in kept.open_effects}
    state.held_launches = {order.effect_id: order for order in kept.held_launches}
    state.effect_tries, state.mix = kept.effect_tries, kept.mix
    state.run_times, state.wear, state.health = kept.run_times, kept.wear, kept.health
    state.starts, state.lengths = kept.starts, kept.lengths
    state.prices = Prices(kept.prices)
    state.reservations = {each.name: each for each in kept.reservations}
    state.jobs = {job.id: job for job in kept.jobs}
    _derive(state)
    state.revision = kept.revision
    return state


def _derive(state: State) -> None:
    for job in state.jobs.values():
        parent = state.jobs.get(job.parent) if job.parent is not None else None
        if parent is not None and parent.array is not None:
            job.spec = parent.array.element  # shared again, as it was
        if job.submit_key is not None:
            state.submit_keys[job.tenant, job.user, job.submit_key] = job.id
        for task in job.live_tasks:
            state.jobs_by_node.setdefault(task.placement.node, {})[job.id] = None
        if job.state not in TERMINAL_JOB_STATES:
            # Not computed anew: a job it once waited for may have been requeued since.
            for other_id in job.blocked_on:
                state.dependents.setdefault(other_id, {})[job.id] = None
        if job.state in ACTIVE_JOB_STATES and job.ends_s is not None:
            state.set_timer(job.ends_s, LIMIT_TIMER, job.id)
        for missing in job.missing:
            state.set_timer(missing.lost_s + REPAIR_GRACE_S, REPAIR_TIMER, job.id)
        state.refresh(job)
    for effect in state.open_effects.values():
        state.set_timer(effect.deadline_s, EFFECT_TIMER, effect.effect_id)
        if isinstance(effect, ReconfigureDevice):
            state.reconfigurations[effect.node, effect.index] = effect.effect_id
    for window in state.reservations.values():
        for at_s in maintaining.times(window):
            state.set_timer(at_s, MAINTENANCE_TIMER, window.name)
    for node in state.nodes.values():
        if node.lost_s is not None:
            state.set_timer(node.lost_s + state.policy.fence_after_s, FENCE_TIMER, node.name)
        for fault in node.slice_faults:
            if fault.until_s is not None:
                state.set_timer(fault.until_s, SLICE_TIMER, f"{node.name}/{fault.index}")
