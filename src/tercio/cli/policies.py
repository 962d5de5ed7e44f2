"""Editing the policy from the command line: one queue of the tree, shown as a difference."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from tercio.cli.output import write
from tercio.cli.session import Session
from tercio.errors import UserError, did_you_mean
from tercio.model.ids import NodeName, SiteName
from tercio.model.node import DeviceSpec, NodeSpec
from tercio.model.queue import Policy, QueueOrder, QueueSpec, walk_queues
from tercio.model.resources import CPUS, DEVICES, MEMORY, WHOLE_DEVICE_MILLI, Amounts
from tercio.model.shape import Domains, domains_of
from tercio.model.topology import ISLAND
from tercio.model.units import parse_cores_milli, parse_memory_bytes
from tercio.model.views import PolicyView

_DIFF_STYLES: Final = {"+": "green", "-": "red", "@": "cyan"}


def parse_amounts(text: str, *, field: str) -> Amounts:
    """Read `H100:8,cpus:64,memory:1TiB` into quota amounts; empty text is no amount at all."""
    found: Amounts = {}
    for part in (part.strip() for part in text.split(",") if part.strip()):
        name, colon, amount = part.rpartition(":")
        if not colon or not name:
            raise UserError(
                f"{field}: '{part}' is not an amount", hint="write TYPE:COUNT, such as H100:8"
            )
        if name == MEMORY:
            found[name] = parse_memory_bytes(amount, field=field)
        elif name == CPUS:
            found[name] = parse_cores_milli(amount, field=field)
        else:
            found[name] = parse_cores_milli(amount, field=field)
    return found


def replace_queue(policy: Policy, path: str, changes: Mapping[str, Any], *, is_new: bool) -> Policy:
    """Return the policy with one queue changed, or made when `is_new`.

    Raises:
        UserError: `not_found` with the nearest path.
    """
    known = walk_queues(policy)
    if path not in known and not is_new:
        raise UserError(
            f"no queue is called '{path}'",
            code="not_found",
            hint=did_you_mean(path, known) or "add --create to make it",
        )
    if "order" in changes:
        changes = {**changes, "order": QueueOrder(str(changes["order"]))}
    names = path.split("/")
    if not all(names):
        raise UserError(f"'{path}' is not a queue path", hint="write it as research/nlp")
    return msgspec.structs.replace(policy, queues=_replace(policy.queues, names, changes))


def _replace(
    queues: Mapping[str, QueueSpec], names: list[str], changes: Mapping[str, Any]
) -> dict[str, QueueSpec]:
    head, *rest = names
    queue = queues.get(head, QueueSpec())
    if rest:
        changed = msgspec.structs.replace(queue, children=_replace(queue.children, rest, changes))
    else:
        changed = msgspec.structs.replace(queue, **changes)
    return {**queues, head: changed}


def apply_policy(
    session: Session,
    view: PolicyView,
    policy: Policy,
    *,
    if_version: int | None,
    is_plan: bool,
) -> None:
    """Show the difference to the policy in force and, unless it is a plan, put it in force."""
    from tercio.formats.policy import write_policy

    send_policy(session, view, write_policy(policy), if_version=if_version, is_plan=is_plan)


def send_policy(
    session: Session,
    view: PolicyView,
    text: str,
    *,
    if_version: int | None,
    is_plan: bool,
    source: str | None = None,
    overcommit: bool = False,
) -> None:
    """Put the text of a policy file in force, on top of the version it was made from."""
    version = view.version if if_version is None else if_version
    if not diff_policies(session, view, text, is_printed=is_plan, source=source):
        session.note(f"policy version {view.version} says that already; nothing was changed")
        return
    if is_plan:
        return
    made = session.client.set_policy(text, if_version=version, overcommit=overcommit, source=source)
    for warning in made.warnings:
        session.warn(warning)
    session.note(
        f"policy version {made.version} is in force; to undo: tercio policy rollback {view.version}"
    )


def diff_policies(
    session: Session, view: PolicyView, text: str, *, is_printed: bool, source: str | None = None
) -> bool:
    """Show how a policy file differs from the policy in force; return whether it does.

    `is_printed` shows it on stdout, else it is a note on stderr.
    """
    from tercio.formats.policy import read_policy, write_policy

    after = write_policy(read_policy(text, source=source or "policy"))
    before = write_policy(view.policy)
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"version {view.version}", "new", lineterm="", n=2
    )
    stream = sys.stdout if is_printed else sys.stderr
    for line in lines:
        shown = session.paint(line, _DIFF_STYLES.get(line[:1], ""), stream=stream)
        if is_printed:
            write(shown)
        else:
            session.note(shown)
    return before != after


class Installed(NamedTuple):
    """What guarantees may come to; `domains` None when only amounts are known."""

    amounts: Amounts
    domains: Domains | None


def capacity_of(session: Session, given: str | None, levels: Sequence[str]) -> Installed | None:
    """Return what guarantees may come to: the option, else what the running server has.

    None when there is nothing to compare with: `none`, no server, or no node yet. `levels` are
    those of the topology; device islands are not told apart here.
    """
    if given == "none":
        return None
    if given is not None:
        return Installed(parse_amounts(given, field="--capacity"), None)
    try:
        nodes = list(session.client.every_node())
    except UserError:
        return None
    total: Amounts = {CPUS: 0, MEMORY: 0, DEVICES: 0}
    for node in nodes:
        total[CPUS] += round(node.cpus * 1000)
        total[MEMORY] += node.memory_bytes
        for kind, count in node.total.items():
            milli = round(count * WHOLE_DEVICE_MILLI)
            total[kind] = total.get(kind, 0) + milli
            total[DEVICES] += milli
    specs = [
        NodeSpec(
            name=NodeName(node.name),
            site=SiteName(node.site),
            labels=node.labels,
            devices=tuple(
                DeviceSpec(type=kind, index=at)
                for kind, count in node.total.items()
                for at in range(round(count))
            ),
        )
        for node in nodes
    ]
    known = domains_of(specs, [level for level in levels if level != ISLAND])
    return Installed(total, known) if nodes else None
