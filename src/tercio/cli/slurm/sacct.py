"""`sacct`: jobs that run and that have ended."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Sequence
from typing import Final

from tercio.cli.output import write
from tercio.cli.session import Session
from tercio.cli.slurm import filters
from tercio.cli.slurm.columns import FIELDS, Column, Seen, clock, instant, line, read_names
from tercio.cli.slurm.ids import find_jobs, read_ids
from tercio.cli.slurm.parsing import parse
from tercio.cli.slurm.words import state_of, task_state
from tercio.errors import UserError
from tercio.model.units import parse_duration_s, parse_instant_s
from tercio.model.views import JobView, TaskView

DEFAULT: Final = "JobID%-12,JobName%10,Partition%10,Account%10,AllocCPUS%10,State%10,ExitCode%8"
_VALUED: Final = {
    **filters.VALUED, "states": "s", "format": "o", "starttime": "S", "endtime": "E", "name": "",
    "partition": "r", "nodelist": "N", "clusters": "M", "delimiter": "",
}  # fmt: skip
_FLAGS: Final = {
    **filters.FLAGS, "allocations": "X", "parsable": "p", "parsable2": "P", "noheader": "n",
    "allusers": "a", "long": "l", "duplicates": "D", "brief": "b",
}  # fmt: skip
_LONG: Final = (
    "JobID%-12,JobName,Partition,Account,User,AllocCPUS,NNodes,State,ExitCode,Submit%19,Start%19,"
    "End%19,Elapsed,NodeList"
)
_TITLES: Final = {
    "jobid": "JobID", "name": "JobName", "partition": "Partition", "account": "Account",
    "numcpus": "AllocCPUS", "state": "State", "username": "User", "numnodes": "NNodes",
    "submittime": "Submit", "nodelist": "NodeList", "timelimit": "Timelimit", "qos": "QOS",
}  # fmt: skip


_MOST_STEPS: Final = 200


def run(session: Session, words: Sequence[str]) -> int:
    """List jobs, your own unless -u, -a or -j says otherwise, and without -X their tasks."""
    options, _ = parse(words, valued=_VALUED, flags=_FLAGS)
    form = options.get("format", _LONG if "long" in options else DEFAULT)
    columns = read_names(form, width=10)
    delimiter = options.get("delimiter", "|")
    is_plain = "parsable" in options or "parsable2" in options
    end = delimiter if "parsable" in options else ""
    if not is_plain:
        columns = [c for column in columns for c in (column, " ")]

    def shown(values: dict[str, str]) -> str:
        if is_plain:
            names = [column.name for column in columns if isinstance(column, Column)]
            return delimiter.join(values[name] for name in names) + end
        return line(columns, lambda name: values[name], mark="+")

    if "noheader" not in options:
        write(shown({name: _TITLES.get(name, title) for name, (title, _) in FIELDS.items()}))
        if not is_plain:
            write(line(columns, lambda _: "-" * 200))
    ids = read_ids([options["jobs"]]) if options.get("jobs") else []
    if not ids and "allusers" not in options and "user" not in options:
        options["user"] = getpass.getuser()
    since_s = _instant_s(session, options.get("starttime"))
    until_s = _instant_s(session, options.get("endtime"))
    views = [
        view
        for view in find_jobs(session, ids, is_all=True)
        if (since_s == 0.0 or _is_between(view, since_s, until_s))
        and filters.is_wanted(view, options)
    ]
    names = [column.name for column in columns if isinstance(column, Column)]
    has_steps = "allocations" not in options and len(views) <= _MOST_STEPS
    for view in views:
        seen = Seen(session, view)
        values = {name: FIELDS[name][1](seen) for name in names}
        write(shown(values))
        if has_steps and view.started_s is not None and view.array is None:
            for task in session.client.job(view.id).tasks:
                write(shown({**values, **step_values(seen, task)}))
    if len(views) > _MOST_STEPS and "allocations" not in options:
        sys.stderr.write(f"sacct: the steps of {len(views)} jobs are left out: see -X and -j\n")
    return 0


def step_values(seen: Seen, task: TaskView) -> dict[str, str]:
    """Return what differs in the line of a task of the last attempt: our step."""
    tasks = max(seen.view.task_count, 1)
    ended_s = task.ended_s or seen.view.ended_s
    elapsed_s = max((ended_s or seen.now_s) - (task.started_s or seen.now_s), 0.0)
    cpus = max(int(FIELDS["numcpus"][1](seen)) // tasks, 1)
    code = f"0:{task.signal}" if task.signal else f"{task.exit_code or 0}:0"
    return {
        "jobid": f"{FIELDS['jobid'][1](seen)}.{task.task}",
        "jobidraw": f"{FIELDS['jobidraw'][1](seen)}.{task.task}",
        "name": task.group or "task", "partition": "", "username": "", "timelimit": "",
        "nodelist": task.node, "numnodes": "1", "ntasks": "1", "numcpus": str(cpus),
        "state": task_state(task, state_of(seen.view)), "exitcode": code,
        "derivedexitcode": "", "reqmem": "", "timelimitraw": "",
        "start": instant(task.started_s, "Unknown"), "end": instant(task.ended_s, "Unknown"),
        "elapsed": clock(elapsed_s, is_long=True), "elapsedraw": str(int(elapsed_s)),
        "cputime": clock(elapsed_s * cpus, is_long=True), "cputimeraw": str(int(elapsed_s * cpus)),
        "alloctres": ",".join(
            [f"cpu={cpus}", "node=1", *([f"gres/gpu={len(task.devices)}"] if task.devices else [])]
        ),
    }  # fmt: skip


def _is_between(view: JobView, since_s: float, until_s: float) -> bool:
    return (view.ended_s or until_s) >= since_s and view.submitted_s <= until_s


def _instant_s(session: Session, text: str | None) -> float:
    """Read `2026-11-30`, `2026-11-30T08:00`, `now-2hours`; no bound where nothing is given."""
    if text is None:
        return 0.0
    if text.startswith("now"):
        amount = text.removeprefix("now").removeprefix("-")
        plain = amount.rstrip("abcdefghijklmnopqrstuvwxyz")
        unit = amount[len(plain) :][:1]
        return session.now_s() - (parse_duration_s(f"{plain}{unit or 's'}") if plain else 0.0)
    if len(text) == 10:
        text += "T00:00:00"
    try:
        return parse_instant_s(text if text.endswith("Z") else f"{text}Z")
    except UserError:
        hint = "write 2026-11-30, 2026-11-30T08:00:00 (UTC) or now-2hours"
        raise UserError(f"'{text}' is no time", hint=hint) from None
