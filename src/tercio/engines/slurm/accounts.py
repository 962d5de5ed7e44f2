"""Whose Slurm jobs the tasks are: the submitting user's where the server may become that user."""

from __future__ import annotations

import os
import pwd

import msgspec

from tercio.errors import UserError


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """A system user of this machine; `is_self` when the server runs as it."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    shell: str
    is_self: bool


def account_of(user: str, *, run_as: str) -> Account:
    """Return the account for a job of `user`.

    A server that is not root submits everything as itself. Root submits as the user, else as
    `run_as`; as root only where `run_as` is root. Raises UserError (`forbidden`).
    """
    if os.geteuid() != 0:
        return _account(os.geteuid())
    for name in (user, run_as):
        try:
            uid = pwd.getpwnam(name).pw_uid if name else 0
        except KeyError:
            continue
        if name and (uid != 0 or run_as == "root"):
            return _account(uid)
    raise UserError(
        f"'{user}' is no unprivileged user here, and Slurm jobs are not submitted as root",
        code="forbidden",
        hint="create the user, or add the site with --run-as USER",
    )


def _account(uid: int) -> Account:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Account(
            name=str(uid), uid=uid, gid=os.getegid(), groups=tuple(os.getgroups()),
            home=os.environ.get("HOME", "/"), shell="/bin/sh", is_self=True,
        )  # fmt: skip
    return Account(
        name=entry.pw_name,
        uid=uid,
        gid=entry.pw_gid,
        groups=tuple(os.getgrouplist(entry.pw_name, entry.pw_gid)),
        home=entry.pw_dir or "/",
        shell=entry.pw_shell or "/bin/sh",
        is_self=uid == os.geteuid(),
    )
