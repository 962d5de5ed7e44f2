"""Whose processes the tasks are: the submitting user, or a configured one, never root unasked."""

from __future__ import annotations

import os
import pwd

import msgspec

from tercio.errors import UserError


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """A system user. `groups` holds all group ids, the primary one included."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    shell: str

    @property
    def is_self(self) -> bool:
        """Whether the server itself runs as this user."""
        return self.uid == os.geteuid()


def account_of(user: str, *, run_as: str | None) -> Account:
    """Return the account that a job of `user` runs as.

    Without root, that is the server's own. With root, it is the system user of that name, else
    `run_as`; root only where `run_as` is `root` itself. Raises UserError with code `forbidden`.
    """
    if os.geteuid() != 0:
        return _own_account()
    for name in (user, run_as):
        found = _find(name) if name else None
        if found is not None and (found.pw_uid != 0 or run_as == "root"):
            return _account(found)
    if run_as and _find(run_as) is None:
        raise UserError(
            f"the configured user '{run_as}' does not exist on this machine",
            code="forbidden",
            field="engines.local.run_as",
        )
    raise UserError(
        f"'{user}' is no unprivileged system user here, and jobs do not run as root",
        code="forbidden",
        hint="create the user, or set run_as of the local engine to an unprivileged user",
        field="engines.local.run_as",
    )


def _find(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def _own_account() -> Account:
    """Return the server's own account; a container may give it a number without a name."""
    uid = os.geteuid()
    try:
        entry = pwd.getpwuid(uid)
        name, home, shell = entry.pw_name, entry.pw_dir, entry.pw_shell
    except KeyError:
        name, home, shell = str(uid), os.environ.get("HOME", "/"), "/bin/sh"
    return Account(
        name=name,
        uid=uid,
        gid=os.getegid(),
        groups=tuple(os.getgroups()),
        home=home,
        shell=shell,
    )


def _account(entry: pwd.struct_passwd) -> Account:
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    return Account(
        name=entry.pw_name,
        uid=entry.pw_uid,
        gid=entry.pw_gid,
        groups=tuple(groups),
        home=entry.pw_dir or "/",
        shell=entry.pw_shell or "/bin/sh",
    )
