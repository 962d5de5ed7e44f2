"""The queue tree: use, limits, entitlement. All arithmetic is exact (integers and rationals).

Entitlement is water-filling down the tree, one resource at a time: every child first gets its
guarantee (no more than it demands), then siblings that want more share the rest by weight until
each has what it demands or may have. Queues of weight 0 share equally what nobody else wants.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Final

import msgspec

from tercio.model.ids import QueuePath
from tercio.model.queue import Policy, QueueSpec, parent_queue, walk_queues
from tercio.model.reasons import Reason
from tercio.model.resources import CPUS, DEVICES, MEMORY, Amounts
from tercio.model.shape import Domains, with_shape
from tercio.sched.owners import ROOT, Blocked, Owner, OwnerLimits

RUNNING_JOBS: Final = "running_jobs"
"""Pseudo-resource of a limit that counts jobs."""

POWER: Final = "power"
"""Pseudo-resource of a power budget, in watts."""

_OWN: Final = "(own)"


class QueueNode:
    """One queue with what it uses, sub-queues included.

    Attributes:
        path, spec, parent, children: its place in the tree.
        use: amounts held now.
        firm: amounts held by jobs that may not be evicted.
        leaving: the part of `use` held by jobs that are stopping.
        demand: amounts held or wanted by jobs that may run.
        users: amounts held by user.
        owners: limits over all queues, of the root.
        decayed: past use in device-seconds.
        entitlement: by resource, for the resources that are contended.
    """

    __slots__ = (
        "_lineage", "children", "decayed", "demand", "entitlement", "firm", "leaving", "order",
        "owners",
        "parent", "path", "spec", "use", "users",
    )  # fmt: skip

    def __init__(self, path: QueuePath, spec: QueueSpec, parent: QueueNode | None) -> None:
        self.path = path
        self.spec = spec
        self.parent = parent
        self.children: dict[str, QueueNode] = {}
        self.order = 0
        self.use: Amounts = {}
        self.firm: Amounts = {}
        self.leaving: Amounts = {}
        self.demand: Amounts = {}
        self.users: dict[str, Amounts] = {}
        self.owners: OwnerLimits | None = None
        self.decayed = 0.0
        self.entitlement: dict[str, Fraction] = {}
        self._lineage: tuple[QueueNode, ...] = ()
        if parent is not None:
            self._lineage = (self, *parent.lineage())

    def lineage(self) -> tuple[QueueNode, ...]:
        """This queue, its parent, and so on below the root."""
        return self._lineage

    def charge(self, owner: Owner, amounts: Amounts, *, is_firm: bool, sign: int) -> None:
        """Change the use of this queue and of all above it."""
        node: QueueNode | None = self
        while node is not None:
            _add(node.use, amounts, sign)
            if is_firm:
                _add(node.firm, amounts, sign)
            if node.spec.user_limit:
                _add(node.users.setdefault(owner.user, {}), amounts, sign)
            if node.owners is not None:
                for key in owner.keys:
                    _add(node.owners.held.setdefault(key, {}), amounts, sign)
            node = node.parent

    def want(self, amounts: Amounts, sign: int) -> None:
        """Change the demand of this queue and of all above it."""
        node: QueueNode | None = self
        while node is not None:
            _add(node.demand, amounts, sign)
            node = node.parent

    def leave(self, amounts: Amounts, sign: int) -> None:
        """Change what stopping jobs hold, here and above."""
        node: QueueNode | None = self
        while node is not None:
            _add(node.leaving, amounts, sign)
            node = node.parent

    def guarantee(self, resource: str) -> int:
        """Guaranteed amount of a resource; nothing said is nothing guaranteed."""
        return self.spec.guarantee.get(resource, 0)

    def net(self, resource: str) -> int:
        """Use without what stopping jobs hold."""
        return self.use.get(resource, 0) - self.leaving.get(resource, 0)

    def is_inside_guarantee(self, amounts: Mapping[str, int]) -> bool:
        """Whether the queue stays inside its guarantee with these amounts added.

        Only resources that some guarantee of the queue names count; a queue that guarantees
        nothing is never inside.
        """
        named = [name for name in amounts if name in self.spec.guarantee]
        if not any(amounts[name] for name in named):
            return False
        return all(self.net(name) + amounts[name] <= self.spec.guarantee[name] for name in named)

    def ratio(self, amounts: Mapping[str, int]) -> tuple[int, Fraction]:
        """Dominant share with these amounts added: (1, use) stands for an infinite one."""
        worst: tuple[int, Fraction] = (0, Fraction(0))
        for name, entitled in self.entitlement.items():
            wanted = amounts.get(name, 0)
            if not wanted:
                continue
            use = self.net(name) + wanted
            share = (0, use / entitled) if entitled else (1, Fraction(use))
            worst = max(worst, share)
        return worst


def _add(total: Amounts, amounts: Mapping[str, int], sign: int) -> None:
    for name, amount in amounts.items():
        left = total.get(name, 0) + sign * amount
        if left:
            total[name] = left
        elif name in total:
            del total[name]


class QueueTree:
    """All queues of a policy."""

    def __init__(self, policy: Policy) -> None:
        self.root = QueueNode(ROOT, QueueSpec(), None)
        self.owners = OwnerLimits(policy.limits)
        self.root.owners = self.owners if self.owners.is_set else None
        self._by_path: dict[QueuePath, QueueNode] = {ROOT: self.root}
        for path, spec in walk_queues(policy).items():
            self._attach(path, spec)
        self.has_lend_limits = any(n.spec.lend_limit for n in self._by_path.values())
        self._has_limits = any(
            n.spec.limit or n.spec.borrow_limit or n.spec.user_limit for n in self._by_path.values()
        )
        self.guaranteed: list[str] = []
        self._list_guaranteed()
        self._has_decay = True

    def _list_guaranteed(self) -> None:
        self.guaranteed = sorted(
            {r for n in self._by_path.values() for r, amount in n.spec.guarantee.items() if amount}
        )

    def promise_domains(self, policy: Policy, domains: Domains) -> None:
        """Count the devices of guaranteed whole domains among the guaranteed amounts."""
        for path, spec in walk_queues(policy).items():
            amounts = with_shape(spec, domains)
            self._by_path[path].spec = msgspec.structs.replace(spec, guarantee=amounts)
        self._list_guaranteed()

    def _attach(self, path: QueuePath, spec: QueueSpec) -> QueueNode:
        parent = self._by_path[parent_queue(path) or ROOT]
        node = QueueNode(path, spec, parent)
        node.order = len(parent.children)
        parent.children[str(path).rpartition("/")[2]] = node
        self._by_path[path] = node
        return node

    def at(self, path: QueuePath) -> QueueNode:
        """Return the queue whose jobs stand at this path.

        Jobs that stand in an inner queue stand beside its children, as one child of their own
        without guarantee. A path that the policy does not know gets a queue without guarantee.
        """
        node = self._by_path.get(path)
        if node is None:
            parts = str(path).split("/")
            for depth in range(1, len(parts) + 1):
                partial = QueuePath("/".join(parts[:depth]))
                if partial not in self._by_path:
                    self._attach(partial, QueueSpec())
            node = self._by_path[path]
        if not node.children or list(node.children) == [_OWN]:
            return node
        own = QueuePath(f"{path}/{_OWN}")
        return self._by_path.get(own) or self._attach(own, QueueSpec())

    def __iter__(self) -> Iterable[QueueNode]:
        return iter(self._by_path.values())

    def load_decay(self, decayed_use: Mapping[QueuePath, float]) -> None:
        """Take in what queues have used in the past, by path; it counts for those above too."""
        if not decayed_use and not self._has_decay:
            return
        self._has_decay = bool(decayed_use)
        for node in self.nodes():
            node.decayed = 0.0
        for path, use in decayed_use.items():
            for node in self.at(path).lineage():
                node.decayed += use

    def nodes(self) -> list[QueueNode]:
        """Every queue, parents first, without the root."""
        return [node for node in self._by_path.values() if node.parent is not None]

    @property
    def is_unlimited(self) -> bool:
        """Whether no limit of a queue, a user or a tenant can refuse a start."""
        return not (
            self._has_limits or self.owners.is_set or self.has_lend_limits or self.guaranteed
        )

    def blocked(
        self, queue: QueueNode, owner: Owner, amounts: Amounts, capacity: Mapping[str, int]
    ) -> Blocked | None:
        """Return the limit that these amounts would pass, the innermost one, or None."""
        for node in queue.lineage() if self._has_limits else ():
            found = _limit_of(node, owner.user, amounts)
            if found is not None:
                return found
        if self.owners.is_set and (found := self.owners.block(owner, amounts)) is not None:
            return found
        return self._lend_block(queue, amounts, capacity) if self.has_lend_limits else None

    def _lend_block(
        self, queue: QueueNode, amounts: Amounts, capacity: Mapping[str, int]
    ) -> Blocked | None:
        """What other queues keep of their guarantee is not there for this one."""
        for name, wanted in amounts.items():
            kept = 0
            lender = ""
            for node in queue.lineage():
                if node.parent is None:
                    continue
                for sibling in node.parent.children.values():
                    if sibling is not node and name in sibling.spec.lend_limit:
                        own = sibling.guarantee(name) - sibling.spec.lend_limit[name]
                        if own > sibling.use.get(name, 0):
                            kept += own - sibling.use.get(name, 0)
                            lender = lender or sibling.path
            total = capacity.get(name, 0)
            if kept and self.root.use.get(name, 0) + kept + wanted > total:
                return Blocked(
                    Reason.WAITING_FOR_SHARE, QueuePath(lender), "lend_limit", name,
                    self.root.use.get(name, 0), wanted, total - kept,
                )  # fmt: skip
        return None

    def firm_block(
        self, queue: QueueNode, amounts: Amounts, capacity: Mapping[str, int]
    ) -> Blocked | None:
        """A job that may not be evicted stays inside the guarantee where guarantees exist."""
        for node in queue.lineage() if self.guaranteed else ():
            for name in self.guaranteed:
                wanted = amounts.get(name, 0)
                if not wanted:
                    continue
                own = int(owed(node.spec.guarantee, name, capacity))
                if not own and node.parent is not None and node.parent.parent is not None:
                    continue  # the parent's guarantee holds for a child that names none
                held = node.firm.get(name, 0)
                if held + wanted > own:
                    return Blocked(
                        Reason.WAITING_FOR_SHARE, node.path, "guarantee", name, held, wanted, own
                    )
        return None

    def entitle(self, capacity: Mapping[str, int]) -> None:
        """Compute every queue's entitlement of every contended or guaranteed resource."""
        for node in self._by_path.values():
            if node.entitlement:
                node.entitlement = {}
        demand = self.root.demand
        contended = [
            name for name in demand if demand[name] > capacity.get(name, 0) and name != RUNNING_JOBS
        ]
        guaranteed = [name for name in self.guaranteed if name != RUNNING_JOBS]
        names = sorted(dict.fromkeys([*guaranteed, *contended]))
        for name in names:
            total = Fraction(capacity.get(name, 0))
            self.root.entitlement[name] = total
            self._fill(self.root, name, total, capacity)

    def shares(self, capacity: Mapping[str, int]) -> dict[QueuePath, dict[str, Fraction]]:
        """Return every queue's share of every device type, contended or not, in thousandths."""
        types = [name for name in capacity if name not in (CPUS, MEMORY, DEVICES)]
        kept = {path: node.entitlement for path, node in self._by_path.items()}
        for node in self._by_path.values():
            node.entitlement = {}
        for name in types:
            self._fill(self.root, name, Fraction(capacity[name]), capacity)
        found = {
            path: node.entitlement
            for path, node in self._by_path.items()
            if node.parent is not None and not path.endswith(_OWN)
        }
        for path, node in self._by_path.items():
            node.entitlement = kept[path]
        return found

    def _fill(
        self, node: QueueNode, name: str, amount: Fraction, capacity: Mapping[str, int]
    ) -> None:
        children = list(node.children.values())
        if not children:
            return
        due = [owed(child.spec.guarantee, name, capacity) for child in children]
        for child, share in zip(children, _divide(children, name, due, amount), strict=True):
            child.entitlement[name] = share
            self._fill(child, name, share, capacity)


def _limit_of(node: QueueNode, user: str, amounts: Amounts) -> Blocked | None:
    spec = node.spec
    if not (spec.limit or spec.borrow_limit or spec.user_limit):
        return None
    for kind, limits in (("limit", spec.limit), ("borrow_limit", spec.borrow_limit)):
        for name, bound in limits.items():
            wanted = amounts.get(name, 0)
            limit = bound + (spec.guarantee.get(name, 0) if kind == "borrow_limit" else 0)
            use = node.use.get(name, 0)
            if wanted and use + wanted > limit:
                return Blocked(Reason.QUEUE_LIMIT, node.path, kind, name, use, wanted, limit)
    held = node.users.get(user, {})
    for name, limit in spec.user_limit.items():
        wanted, use = amounts.get(name, 0), held.get(name, 0)
        if wanted and use + wanted > limit:
            return Blocked(
                Reason.USER_LIMIT, node.path, "user_limit", name, use, wanted, limit, user
            )
    return None


def owed(guarantee: Mapping[str, int], name: str, capacity: Mapping[str, int]) -> Fraction:
    """What a guarantee says about one resource, whatever words it uses.

    A guarantee of devices of any type is one of each type in proportion to the cluster; a
    guarantee by type is one of that many devices.
    """
    if name in guarantee:
        return Fraction(guarantee[name])
    if name in (CPUS, MEMORY):
        return Fraction(0)
    if name == DEVICES:
        return Fraction(sum(v for k, v in guarantee.items() if k not in (CPUS, MEMORY)))
    total = capacity.get(DEVICES, 0)
    if DEVICES not in guarantee or not total:
        return Fraction(0)
    return Fraction(guarantee[DEVICES] * capacity.get(name, 0), total)


def _divide(
    children: Sequence[QueueNode], name: str, due: Sequence[Fraction], amount: Fraction
) -> list[Fraction]:
    """Divide an amount among siblings: guarantee first, then by weight up to what each wants."""
    want = [_most(child, name) for child in children]
    if len(children) == 1 and not due[0]:
        return [max(Fraction(0), min(Fraction(want[0]), amount))]
    base = [min(part, Fraction(most)) for part, most in zip(due, want, strict=True)]
    total = sum(base, Fraction(0))
    if total > amount:
        # More is promised than there is (nodes were lost): guarantees shrink in proportion.
        return [part * amount / total for part in base]
    share = [Fraction(part) for part in base]
    left = amount - total
    weighted = [i for i, child in enumerate(children) if child.spec.weight > 0]
    left = _pour(share, want, {i: children[i].spec.weight for i in weighted}, left)
    _pour(share, want, {i: 1 for i in range(len(children)) if i not in weighted}, left)
    return share


def _pour(
    share: list[Fraction], want: Sequence[int], weights: Mapping[int, int], left: Fraction
) -> Fraction:
    """Fill those with a weight in proportion to it until each is full; return the rest."""
    thirsty = {i: weight for i, weight in weights.items() if share[i] < want[i]}
    while thirsty and left > 0:
        total = sum(thirsty.values())
        full = [i for i, w in thirsty.items() if want[i] - share[i] <= left * w / total]
        if not full:
            for i, weight in thirsty.items():
                share[i] += left * weight / total
            return Fraction(0)
        for i in full:
            left -= want[i] - share[i]
            share[i] = Fraction(want[i])
            del thirsty[i]
    return left


def _most(node: QueueNode, name: str) -> int:
    """The most of a resource that a queue can use: its demand, inside its limits."""
    most = node.demand.get(name, 0)
    if name in node.spec.limit:
        most = min(most, node.spec.limit[name])
    if name in node.spec.borrow_limit:
        most = min(most, node.guarantee(name) + node.spec.borrow_limit[name])
    return most
