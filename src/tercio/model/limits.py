"""Limits of users and tenants, whatever queue they use: amounts at once, device-hours in a window.

A window counts whole days, midnight to midnight UTC: `days` 7 is today and the six days before.
So a budget comes free in steps, at times that can be told in advance.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from tercio.model.resources import Amounts

DAY_S: Final = 86_400
HOUR_MS: Final = 3_600_000
MAX_WINDOW_DAYS: Final = 366


class OwnerKind(StrEnum):
    """Whose a limit is."""

    USER = "user"
    TENANT = "tenant"


class DeviceTime(msgspec.Struct, frozen=True, kw_only=True):
    """Most device time in a window: device-milliseconds in so many days."""

    amount_ms: int
    days: int


class OwnerLimit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one user or tenant may have.

    Attributes:
        amounts: held at once, as of a queue's user limit; `running_jobs` counts jobs.
        device_time: in a window, or None for any.
    """

    amounts: Amounts = {}
    device_time: DeviceTime | None = None


class Limits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits over all queues.

    Attributes:
        per_user, per_tenant: of every one of them.
        users, tenants: of those named, in place of the limit for everyone.
    """

    per_user: OwnerLimit = OwnerLimit()
    per_tenant: OwnerLimit = OwnerLimit()
    users: dict[str, OwnerLimit] = {}
    tenants: dict[str, OwnerLimit] = {}

    def of(self, kind: OwnerKind, name: str) -> OwnerLimit:
        """Return the limit of one user or tenant."""
        if kind is OwnerKind.USER:
            return self.users.get(name, self.per_user)
        return self.tenants.get(name, self.per_tenant)


def owner_key(kind: OwnerKind, name: str) -> str:
    """Return the key under which use of a user or tenant is counted: `user:ana`."""
    return f"{kind.value}:{name}"


def first_day(now_s: float, days: int) -> int:
    """Return the first day, since the epoch, of the window that ends today.

    >>> first_day(10 * DAY_S + 5.0, 7)
    4
    """
    return int(now_s // DAY_S) - days + 1


def spent_ms(spent: Mapping[int, int], now_s: float, days: int) -> int:
    """Return what was used in the window, by device-milliseconds per day."""
    begin = first_day(now_s, days)
    return sum(amount for day, amount in spent.items() if day >= begin)
