"""What a reader may see of other people's things.

One rule for jobs: operators and admins see all of them, everyone else those of the own tenant.
Environment values and webhook addresses often hold secrets, so only the job's user, operators
and admins see them; of the values a file calls secrets, nobody sees any. Of a job of another
tenant only its id is ever shown, and that only where devices are at stake.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tercio.model.events import (
    AnyEvent,
    EffectAnswered,
    Entry,
    HealthPolicyChanged,
    JobCancelRequested,
    JobEvent,
    JobEvicted,
    JobSubmitted,
    JobWaited,
    PolicyChanged,
    PromisesChanged,
    TaskExited,
    TaskLaunchFailed,
    TaskStarted,
    TokenCreated,
    TokenRevoked,
)
from tercio.model.identity import Principal, Role
from tercio.model.job import JobSpec
from tercio.model.views import JobView

HIDDEN: Final = "(hidden)"
_HIDDEN_SPEC: Final = JobSpec(name=HIDDEN)


def sees_tenant(reader: Principal, tenant: str) -> bool:
    """Whether the reader may see the jobs of a tenant."""
    return _sees(reader, tenant)


def _sees(reader: Principal, tenant: str | None) -> bool:
    """Whether the reader may see a job of this tenant; None when the tenant is not known."""
    return reader.has_role(Role.OPERATOR) or tenant == reader.tenant


def sees_env(reader: Principal, user: str, tenant: str) -> bool:
    """Whether the reader may see environment values of a user's jobs."""
    return reader.has_role(Role.OPERATOR) or (reader.user, reader.tenant) == (user, tenant)


def redact_spec(spec: JobSpec) -> JobSpec:
    """Return the spec without environment values and webhook addresses."""
    return msgspec.structs.replace(
        spec,
        env=dict.fromkeys(spec.env, HIDDEN),
        notify=tuple(msgspec.structs.replace(n, url=HIDDEN) for n in spec.notify),
    )


def redact_job(view: JobView, reader: Principal) -> JobView:
    """Return a job of a tenant that the reader sees, without what is the user's own."""
    if view.spec is None or sees_env(reader, view.user, view.tenant):
        return view
    return msgspec.structs.replace(view, spec=redact_spec(view.spec))


def redact_event(event: AnyEvent, reader: Principal, tenant: str | None) -> AnyEvent:
    """Return an event as the reader may see it.

    Args:
        event: from the journal.
        reader: who will see it.
        tenant: of the job it concerns; None when that job is not known any more.
    """
    match event:
        case TokenCreated(token=token):
            hidden = msgspec.structs.replace(token, sha256="")
            if not reader.has_role(Role.ADMIN):
                nobody = Principal(user=HIDDEN, tenant=HIDDEN, role=token.principal.role)
                hidden = msgspec.structs.replace(hidden, principal=nobody)
            return msgspec.structs.replace(event, token=hidden)
        case HealthPolicyChanged(settings=settings) if (
            "webhook" in settings and not reader.has_role(Role.OPERATOR)
        ):
            return msgspec.structs.replace(event, settings={**settings, "webhook": HIDDEN})
        case TokenRevoked():
            return event
        case PolicyChanged() | PromisesChanged():
            return event
        case JobSubmitted() if not sees_tenant(reader, event.tenant):
            return msgspec.structs.replace(
                event, spec=_HIDDEN_SPEC, user=HIDDEN, tenant=HIDDEN, submit_key=None
            )
        case JobSubmitted() if not sees_env(reader, event.user, event.tenant):
            return msgspec.structs.replace(event, spec=redact_spec(event.spec), submit_key=None)
        case JobEvent() | EffectAnswered() if not _sees(reader, tenant):
            return _without_prose(event)
        case _:
            return event


def _without_prose(event: AnyEvent) -> AnyEvent:
    """Return a job's event without names and messages; state, nodes and devices remain."""
    match event:
        case JobCancelRequested():
            return msgspec.structs.replace(event, by=HIDDEN, reason="")
        case JobEvicted() | JobWaited() | TaskExited() | TaskLaunchFailed() | EffectAnswered():
            return msgspec.structs.replace(event, message="")
        case TaskStarted():
            return msgspec.structs.replace(event, detail="")
        case _ if "by" in event.__struct_fields__:
            return msgspec.structs.replace(event, by=HIDDEN)
        case _:
            return event


def sight(event: AnyEvent, reader: Principal, tenant: str | None) -> tuple[bool, bool, bool]:
    """Return all that `redact_event` asks of a reader: readers of one sight see the same."""
    is_own = isinstance(event, JobSubmitted) and sees_env(reader, event.user, event.tenant)
    return reader.has_role(Role.ADMIN), _sees(reader, tenant), is_own


def redact_entry(entry: Entry, reader: Principal, tenant: str | None) -> Entry:
    """Return a journal entry as the reader may see it."""
    event = redact_event(entry.event, reader, tenant)
    return entry if event is entry.event else msgspec.structs.replace(entry, event=event)
