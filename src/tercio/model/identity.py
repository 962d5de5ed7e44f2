"""Who asks: users, roles and the tokens that stand for them."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec


class Role(StrEnum):
    """What a token may do; each role includes the ones before it."""

    VIEWER = "viewer"
    USER = "user"
    OPERATOR = "operator"
    ADMIN = "admin"


AGENT_PREFIX: Final = "agent@"
"""A token for the user `agent@NODE` may report for that node and for no other."""
_RANK: Final = {Role.VIEWER: 0, Role.USER: 1, Role.OPERATOR: 2, Role.ADMIN: 3}


class Principal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The authenticated asker.

    Attributes:
        user: name of the user, also the system user on engines that have one.
        tenant: who pays.
        role: see `Role`.
        groups: names that queue rules (`group:nlp`) refer to.
    """

    user: str
    tenant: str = "default"
    role: Role = Role.USER
    groups: tuple[str, ...] = ()

    def has_role(self, role: Role) -> bool:
        """Whether this principal holds at least `role`."""
        return _RANK[self.role] >= _RANK[role]


class Token(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stored token: its digest only, never the secret.

    Attributes:
        token_id: short public name, used to revoke it.
        sha256: hex digest of the secret.
        principal: whom it stands for.
        expires_s: end of validity, or None.
    """

    token_id: str
    sha256: str
    principal: Principal
    expires_s: float | None = None
