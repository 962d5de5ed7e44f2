"""Replays the journal's own past under several policies, in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from tercio.api.twin_bodies import (
    NOW,
    TwinAnswer,
    TwinArm,
    TwinCourse,
    TwinJob,
    TwinQuestion,
)
from tercio.errors import UserError
from tercio.formats.policy import read_policy
from tercio.model.queue import Policy, walk_queues
from tercio.store.journal import read_entries
from tercio.twin.arms import Outcome, Plan, Setting, run_arms
from tercio.twin.change import clusters
from tercio.twin.compare import compare
from tercio.twin.faults import draw_over, parse_climate
from tercio.twin.policies import Discipline, built_in, from_policy
from tercio.twin.stats import Prices
from tercio.twin.trace import Trace
from tercio.twin.traces.journal import read_journal
from tercio.twin.world import World

JOBS_MAX: Final = 3000
"""Most jobs of a replay; the newest are taken."""
ROWS_MAX: Final = 1000
POINTS_MAX: Final = 400
DAY_S: Final = 86_400.0


def answer(raw: bytes) -> TwinAnswer:
    """Replay; tells a line of progress on stderr after each arm."""
    question = msgspec.json.decode(raw, type=TwinQuestion)
    trace, notes = _trace(question)
    plans = [
        Plan(name=arm.name + suffix, discipline=_discipline(arm, question.policy), nodes=nodes)
        for suffix, nodes in clusters(
            question.nodes, add=question.body.add, drain=question.body.drain
        )
        for arm in question.body.arms
    ]
    climate = parse_climate(question.body.faults) if question.body.faults else None
    for plan in plans:
        # Refused here, before anything is replayed.
        plan.discipline(trace)
    setting = Setting(
        plans=plans,
        workload_of=lambda _: trace,
        seeds=1,
        world=World(),
        faults=lambda nodes, what, seed: (
            () if climate is None else draw_over(climate, nodes, what, seed=seed)
        ),
        prices=Prices(),
        weights={str(p): float(q.weight) for p, q in walk_queues(question.policy).items()},
    )
    outcomes = run_arms(setting, _tell)
    names = [plan.name for plan in plans]
    found = compare(names, [each.figures for each in outcomes], [o.arm.result for o in outcomes])
    warned = [text for each in outcomes for text in each.arm.result.warnings]
    return TwinAnswer(
        rows=tuple(msgspec.to_builtins(row) for row in found.rows),
        courses=tuple(_course(each) for each in outcomes),
        jobs=len(trace.jobs),
        notes=tuple(dict.fromkeys((*notes, *trace.warnings, *warned))),
    )


def _tell(done: int, whole: int) -> None:
    sys.stderr.write(f"{done} {whole}\n")
    sys.stderr.flush()


def _trace(question: TwinQuestion) -> tuple[Trace, Sequence[str]]:
    entries = read_entries(Path(question.journal))
    trace = read_journal((entry.event for entry in entries), "this server's journal")
    since_s = question.since_s
    jobs = tuple(j for j in trace.jobs if since_s is None or j.submit_s >= since_s)
    if not jobs:
        raise UserError("no job of that time has ended", field="days", hint="ask for more days")
    notes = []
    if len(jobs) > JOBS_MAX:
        notes.append(f"the newest {JOBS_MAX} of {len(jobs)} jobs are replayed")
        jobs = jobs[-JOBS_MAX:]
    return msgspec.structs.replace(trace, jobs=jobs), notes


def _discipline(arm: TwinArm, now: Policy) -> Callable[[Trace], Discipline]:
    if arm.file is not None:
        policy = read_policy(arm.file, source=arm.name)
        return lambda _: from_policy(arm.name, policy)
    if arm.name == NOW:
        return lambda _: from_policy(arm.name, now)
    return lambda trace: built_in(arm.name, trace.jobs)


def _course(outcome: Outcome) -> TwinCourse:
    result = outcome.arm.result
    course = result.course
    step = max(1, -(-len(course.at_s) // POINTS_MAX))
    jobs = sorted(result.jobs, key=lambda job: -(job.wait_s or 0.0) * job.devices)[:ROWS_MAX]
    return TwinCourse(
        name=outcome.arm.name,
        at_s=tuple(float(value) for value in course.at_s[::step]),
        used=tuple(float(value) for value in course.devices_used[::step]),
        waiting=tuple(float(value) for value in course.waiting[::step]),
        devices=result.devices,
        jobs=tuple(
            TwinJob(
                id=job.id, queue=job.queue, devices=job.devices, submit_s=job.submit_s,
                start_s=job.start_s, end_s=job.end_s, state=job.state,
            )
            for job in jobs
        ),
    )  # fmt: skip


TASKS: Final[Mapping[str, Callable[[bytes], msgspec.Struct]]] = {"twin_run": answer}
"""Questions of the twin by name."""
