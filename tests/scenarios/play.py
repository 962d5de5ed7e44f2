"""Plays a scenario written as a table that an operator can read.

One line, one thing. Times are seconds and go first; `#` begins a remark.

    cluster 2r x 4n x 8g                 racks x nodes x devices; more lines add nodes
    cluster 1n x 8g type=A100 slots=2
    policy across=priority depth=0       words of the policy that differ from the usual
    limits user:* devices=4 hours=40/7d tenant:acme running_jobs=2    over all queues
    queue A 3/-/1 strict                 guarantee/limit/weight in devices
    queue S -/-/1 shape=node:2           so many whole domains; rack:1, island:1
    0  run    J1 A 1x5 p100 on=n1        submit and have it running now
    0  submit J2 A 4x8 same=rack t=60    tasks x devices; t: time limit; by: deadline
    0  submit J7 A 1x4 cheap=100         flexible, and power is cheaper from then on
    0  submit J5 A 1x4 type=any          devices of a type, or of any
    0  submit J3 A 2x4+2x4 each=rack     subgroups, each in a rack; least=1: so many must start
    0  submit J4 A 4x8 same=rack lead=1x0   a group beside it that leads it
    0  reserve R A 8 from=60 for=30      devices or node=2; every=; user=; 9 unreserve R
    5  end J1                            also cancel, down, up, cordon, foreign
    5  lose J1 2                         task 2 is gone and wanted back, the rest runs on
    5  expect J2 running on=n1,n2        or: waits REASON, evicted A,B, evicted none
    60 expect J2 started 60              when it last started
    60 says J2 "4 free"                  the message contains the text

Usual policy: within_queue lower_priority, across_queues fair, no grace, no minimum run time, no
eviction budget, no history, reservation depth 1. All jobs may be evicted unless `firm`.
Every cycle is checked against the rules that never break; a scenario ends in a fixpoint.
"""

from __future__ import annotations

import re
import shlex

import msgspec

from tercio.formats.policy import read_policy_object
from tercio.model.ids import JobId, NodeName, QueuePath
from tercio.model.job import IndexRange, JobSpec, TaskGroup
from tercio.model.limits import Limits
from tercio.model.node import NodeState
from tercio.model.queue import (
    AcrossQueues,
    PlacementPolicy,
    Policy,
    PreemptionPolicy,
    QueueOrder,
    QueueSpec,
    WithinQueue,
)
from tercio.model.reservation import Reservation
from tercio.model.topology import TopologyRequest
from tercio.testing import rules
from tercio.testing.build import cheap_from, cluster, gang, group
from tercio.testing.rounds import Rounds

USUAL = PreemptionPolicy(
    within_queue=WithinQueue.LOWER_PRIORITY,
    across_queues=AcrossQueues.FAIR,
    grace_s=0.0,
    min_runtime_s=0.0,
    max_evictions_per_job_per_hour=None,
)


def play(text: str) -> Rounds:
    """Play a table to its end and return the cluster for further questions."""
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    head = [line for line in lines if line and not line[0].isdigit()]
    r = Rounds(_nodes(head), _policy(head), checks=rules.ALL)
    timed = [line for line in lines if line and line[0].isdigit()]
    timed.sort(key=lambda line: float(line.split()[0]))
    for number, line in enumerate(timed):
        at_s, verb, *words = shlex.split(line)
        if float(at_s) > r.now_s:
            r.run(float(at_s))
        try:
            _do(r, verb, words)
        except AssertionError as problem:
            told = "\n".join(f"{e.at_s:g} {e.what} {e.job} {e.detail}" for e in r.log)
            why = "\n".join(f"{j}: {r.plans[-1].decisions[j].message}" for j in r.waiting
                            if r.plans and j in r.plans[-1].decisions)  # fmt: skip
            raise AssertionError(
                f"line {number + 1}: {line}\n{problem}\n{told}\n{why}"
            ) from problem
    r.settle()
    evicted = r.evicted()
    assert len(set(evicted)) == len(evicted), f"evicted twice: {evicted}"
    return r


def _words(words: list[str]) -> tuple[list[str], dict[str, str]]:
    plain = [w for w in words if "=" not in w]
    named = dict(w.split("=", 1) for w in words if "=" in w)
    return plain, named


def _nodes(head: list[str]) -> list[object]:
    found: list[object] = []
    for line in head:
        verb, _, rest = line.partition(" ")
        if verb == "cluster":
            size = " ".join(w for w in rest.split() if "=" not in w)
            _, named = _words(rest.split())
            slots = named.get("slots")
            found += cluster(
                size,
                device_type=named.get("type", "H100"),
                first=len(found) + 1,
                slots=int(slots) if slots else None,
                islands=int(named.get("islands", 1)),
            )
    return found


def _policy(head: list[str]) -> Policy:
    queues: dict[str, QueueSpec] = {}
    named: dict[str, str] = {}
    limits = Limits()
    for line in head:
        verb, *words = line.split()
        if verb == "queue":
            _add_queue(queues, words)
        elif verb == "policy":
            named |= _words(words)[1]
        elif verb == "limits":
            limits = _limits(words)
    preemption = msgspec.structs.replace(
        USUAL,
        across_queues=AcrossQueues(named.get("across", "fair")),
        within_queue=WithinQueue(named.get("within", "lower_priority")),
        grace_s=float(named.get("grace", 0)),
        min_runtime_s=float(named.get("min_runtime", 0)),
        max_evictions_per_job_per_hour=int(named["budget"]) if "budget" in named else None,
    )
    depth = named.get("depth", "1")
    return Policy(
        half_life_s=0.0,
        queues=queues or {"default": QueueSpec()},
        default_queue=next(iter(queues), "default"),  # type: ignore[arg-type]
        preemption=preemption,
        reservation_depth=None if depth == "all" else int(depth),
        max_overtake_s=float(named.get("max_overtake", 3600)),
        limits=limits,
        placement=PlacementPolicy(
            defragment=named.get("defragment") == "on", pack=named.get("pack", "fragmentation")
        ),
    )


def _limits(words: list[str]) -> Limits:
    """`limits user:* devices=4 hours=40/7d tenant:acme running_jobs=2`; `*` stands for all."""
    tree: dict[str, dict[str, object]] = {"users": {}, "tenants": {}}
    at: dict[str, object] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            kind, _, name = word.partition(":")
            at = {}
            if name == "*":
                tree[f"per_{kind}"] = at
            else:
                tree[f"{kind}s"][name] = at
        elif key == "hours":
            amount, _, period = value.partition("/")
            at["device_hours"] = {"amount": float(amount), "per": period}
        else:
            at[key] = int(value)
    policy = read_policy_object({"queues": {"default": {}}, "limits": tree})  # type: ignore[dict-item]
    return policy.limits


def _add_queue(queues: dict[str, QueueSpec], words: list[str]) -> None:
    (path, sizes, *more), named = _words(words)
    shape = dict(part.split(":") for part in named.get("shape", "").split(",") if part)
    guarantee, limit, weight = sizes.split("/")
    spec = QueueSpec(
        guarantee={} if guarantee == "-" else {"devices": int(guarantee) * 1000},
        guarantee_shape={level: int(count) for level, count in shape.items()},
        limit={} if limit == "-" else {"devices": int(limit) * 1000},
        weight=int(weight),
        order=QueueOrder.STRICT if "strict" in more else QueueOrder.BACKFILL,
    )
    parent, slash, name = path.rpartition("/")
    if not slash:
        queues[name] = spec
        return
    top = queues[parent]
    queues[parent] = msgspec.structs.replace(top, children={**top.children, name: spec})


def _do(r: Rounds, verb: str, words: list[str]) -> None:
    match verb:
        case "run" | "submit":
            _submit(r, words, runs=verb == "run")
        case "lose":
            r.lose_task(words[0], int(words[1]), is_repaired=True)
        case "end":
            r.finish(words[0])
        case "reserve":
            r.set_reservation(words[0], _reservation(words))
        case "unreserve":
            r.set_reservation(words[0], None)
        case "cancel":
            r.cancel(words[0])
        case "down" | "up" | "cordon":
            for name in words[0].split(","):
                state = {"down": NodeState.DOWN, "up": NodeState.READY}.get(
                    verb, NodeState.CORDONED
                )
                r.set_state(name, state, cordon=verb == "cordon")
        case "foreign":
            node = r.nodes[NodeName(words[0])]
            used = tuple(int(w) for w in words[1].split(",")) if len(words) > 1 else ()
            spec = msgspec.structs.replace(node.spec, foreign_devices=used)
            r.nodes[NodeName(words[0])] = msgspec.structs.replace(node, spec=spec)
            r.set_state(words[0], node.state)
        case "expect":
            _expect(r, words)
        case "says":
            r.settle()
            message = r.why(words[0]).message
            assert words[1] in message, f"{words[0]} says: {message}"
        case _:
            raise ValueError(verb)


def _reservation(words: list[str]) -> Reservation:
    plain, named = _words(words)
    levels = {key: int(named[key]) for key in ("node", "rack") if key in named}
    return Reservation(
        name=plain[0],
        queue=None if "user" in named else QueuePath(plain[1]),
        user=named.get("user"),
        type="H100",
        devices=0 if levels else int(plain[2]),
        shape=levels,
        from_s=float(named["from"]),
        duration_s=float(named["for"]),
        every_s=float(named["every"]) if "every" in named else None,
    )


def _submit(r: Rounds, words: list[str], *, runs: bool) -> None:
    (job, queue, size, *flags), named = _words(words)
    priority = next((int(f[1:]) for f in flags if re.fullmatch(r"p-?\d+", f)), 0)
    more = {
        "queue": queue,
        "priority": priority,
        "preemptible": "firm" not in flags,
        "runs_s": float(named["runs"]) if "runs" in named else None,
        "dies_s": None if named.get("dies") == "never" else float(named.get("dies", 0)),
        "user": named.get("user", "ana"),
        "tenant": named.get("tenant", "default"),
        "cheaper": cheap_from(float(named["cheap"])) if "cheap" in named else None,
    }
    if "array" in named:
        more["pending"] = (IndexRange(start=0, stop=int(named["array"])),)
    spec = _spec(size, named, exclusive="exclusive" in flags)
    spec = msgspec.structs.replace(spec, reservation=named.get("reservation"))
    if not runs:
        r.submit(job, spec, **more)  # type: ignore[arg-type]
        return
    on = tuple(named["on"].split(",")) if "on" in named else ()
    r.start(job, spec, on=on, **more)


def _spec(size: str, named: dict[str, str], *, exclusive: bool) -> JobSpec:
    spec = _gang(size.partition("+")[0], named, exclusive=exclusive)
    (own,) = spec.groups
    if "+" in size:
        topology = TopologyRequest(same=named["each"]) if "each" in named else None
        parts = tuple(
            group(part, name=f"g{at}", topology=topology) for at, part in enumerate(size.split("+"))
        )
        least = int(named["least"]) if "least" in named else None
        own = TaskGroup(subgroups=parts, min_subgroups=least, topology=own.topology)
    if "lead" not in named:
        return msgspec.structs.replace(spec, groups=(own,))
    topology = msgspec.structs.replace(own.topology or TopologyRequest(), leader="lead")
    led = msgspec.structs.replace(own, name="work", topology=topology)
    return msgspec.structs.replace(spec, groups=(group(named["lead"], name="lead"), led))


def _gang(size: str, named: dict[str, str], *, exclusive: bool) -> JobSpec:
    return gang(
        size,
        device_type=None if named.get("type") == "any" else named.get("type", "H100"),
        limit_s=float(named["t"]) if "t" in named else None,
        deadline_s=float(named["by"]) if "by" in named else None,
        same=named.get("same"),
        prefer=named.get("prefer"),
        tasks_max=int(named["max"]) if "max" in named else None,
        match=named.get("match"),
        exclude=tuple(named["not"].split(",")) if "not" in named else (),
        exclusive=exclusive,
    )


def _expect(r: Rounds, words: list[str]) -> None:
    r.settle()
    if words[0] == "evicted":
        found = r.evicted()
        if words[1].isdigit():
            assert len(found) == int(words[1]), f"evicted {found}"
        else:
            wanted = [] if words[1] == "none" else sorted(words[1].split(","))
            assert sorted(found) == wanted, f"evicted {found}"
        return
    jobs, verb, *rest = words
    for job in jobs.split(","):
        match verb:
            case "running":
                assert JobId(job) in r.running, f"{job} waits: {r.why(job).message}"
                if rest:
                    nodes = rest[0].removeprefix("on=").split(",")
                    assert sorted(r.where(job)) == sorted(nodes), r.where(job)
            case "waits":
                assert JobId(job) in r.waiting, f"{job} runs or is gone"
                if rest:
                    assert r.reason(job) == rest[0], r.why(job)
            case "started":
                assert r.started_s(job) == float(rest[0]), f"started {r.started_s(job)}"
            case "tasks":
                assert len(r.running[JobId(job)].tasks) == int(rest[0]), r.where(job)
            case "label":
                line = [e for e in r.log if e.what == "start" and e.job == job][-1]
                assert line.detail.split()[0] == rest[0], line
            case _:
                raise ValueError(verb)
