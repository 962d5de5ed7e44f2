"""Events about the machine's surroundings: policy, promises, tokens, server runs, effects."""

from __future__ import annotations

from typing import Final

import msgspec

from tercio.core import attempts, maintaining, signals, slicing
from tercio.core.state import MAINTENANCE_TIMER, State
from tercio.errors import InvariantViolation
from tercio.model.effects import (
    AnyEffect,
    LaunchTask,
    Notify,
    ReconfigureDevice,
    RepairNode,
    SignalTask,
    StopTask,
)
from tercio.model.events import (
    AnyEvent,
    DeviceReconfigured,
    EffectAnswered,
    EffectTimedOut,
    PolicyChanged,
    PromisesChanged,
    ReservationAdded,
    ReservationRemoved,
    ServerStarted,
    SlicePauseEnded,
    TaskLaunchFailed,
    TokenCreated,
    TokenRevoked,
)
from tercio.model.job import EndCause

LAUNCH_TRIES: Final = 3
NOTIFY_TRIES: Final = 5


def take(state: State, event: AnyEvent) -> None:
    """Take one of this module's events in."""
    match event:
        case PolicyChanged():
            state.policy, state.policy_version = event.policy, event.version
            for job in state.jobs.values():
                if job.id in state.waiting or job.id in state.running:
                    state.refresh(job)
            state.revision += 1
        case PromisesChanged():
            state.promises = event.promises
        case ReservationAdded():
            state.reservations[event.reservation.name] = event.reservation
            for at_s in maintaining.times(event.reservation):
                state.set_timer(at_s, MAINTENANCE_TIMER, event.reservation.name)
            state.revision += 1
        case ReservationRemoved():
            state.reservations.pop(event.name, None)
            state.revision += 1
        case TokenCreated():
            state.tokens[event.token.token_id] = event.token
        case TokenRevoked():
            state.tokens.pop(event.token_id, None)
        case ServerStarted():
            _server_started(state, event)
        case EffectAnswered():
            effect = state.close_effect(event.effect_id)
            if isinstance(effect, SignalTask):
                signals.answered(state, effect)
        case EffectTimedOut():
            _timed_out(state, event)
        case DeviceReconfigured():
            _give_up(state, slicing.reconfigured(state, event))
        case SlicePauseEnded():
            slicing.pause_ended(state, event)
        case _:
            raise InvariantViolation(f"no rule for event {type(event).__name__}")


def _server_started(state: State, event: ServerStarted) -> None:
    """Fence the effects of earlier runs: the open ones go on under the new epoch."""
    state.epoch = event.epoch
    state.jobs_submitted = max(state.jobs_submitted, event.jobs_floor)
    if event.first_port:
        state.ledger.begin_ports(event.first_port)
    still_open = list(state.open_effects.values())
    state.open_effects = {}
    for effect in still_open:
        state.issue(_again(effect, epoch=event.epoch, now_s=event.at_s))
    state.effects = []  # `Driver.reissue` hands them out once the engines are there


def _again(effect: AnyEffect, *, epoch: int, now_s: float) -> AnyEffect:
    match effect:
        case LaunchTask():
            wait_s = slicing.LAUNCH_TIMEOUT_S
        case StopTask():
            wait_s = effect.grace_s + attempts.STOP_MARGIN_S
        case ReconfigureDevice():
            wait_s = slicing.SLICE_TIMEOUT_S
        case RepairNode():
            wait_s = max(effect.deadline_s - now_s, signals.SIGNAL_TIMEOUT_S)
        case SignalTask() | Notify():
            wait_s = signals.SIGNAL_TIMEOUT_S
    return msgspec.structs.replace(effect, epoch=epoch, deadline_s=now_s + wait_s)


def _timed_out(state: State, event: EffectTimedOut) -> None:
    """Order it again, or give up where giving up is safe."""
    effect = state.open_effects.get(event.effect_id)
    if effect is None:
        return
    tries = state.effect_tries.get(effect.effect_id, 0) + 1
    state.effect_tries[effect.effect_id] = tries
    match effect:
        case LaunchTask() if tries >= LAUNCH_TRIES:
            # It may still start later: stopping it makes sure that it does not.
            state.close_effect(effect.effect_id)
            job, task = attempts.find(state, effect.job_id, effect.attempt, effect.task)
            if job is not None and task is not None and task.is_live:
                message = f"no answer to the launch of task {effect.task} on {effect.node}"
                attempts.stop(state, job, EndCause.NODE_FAILED, message)
        case SignalTask() if signals.is_wanted(state, effect):
            wait_s = min(signals.SIGNAL_TIMEOUT_S * 2 ** min(tries, 9), signals.LONGEST_TIMEOUT_S)
            again = _again(effect, epoch=state.epoch, now_s=event.at_s)
            state.issue(msgspec.structs.replace(again, deadline_s=event.at_s + wait_s))
        case SignalTask() | RepairNode():
            # A repair without an answer has failed by the policy's own clock.
            state.close_effect(effect.effect_id)
        case ReconfigureDevice():
            _give_up(state, slicing.timed_out(state, effect, event.at_s))
        case Notify() if tries >= NOTIFY_TRIES:
            state.close_effect(effect.effect_id)
        case LaunchTask() | StopTask() | Notify():
            state.issue(_again(effect, epoch=state.epoch, now_s=event.at_s))


def _give_up(state: State, failures: list[TaskLaunchFailed]) -> None:
    """Fail launches whose devices could not be given the form that they need."""
    for failure in failures:
        attempts.launch_failed(state, failure)
