"""Columns of squeue and sacct: every field by name, and the forms that choose them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tercio.cli.session import Session
from tercio.cli.slurm.words import is_waiting_array, reason_of, shown_id, state_of
from tercio.errors import UserError, did_you_mean
from tercio.model.ids import JobId, array_parent, job_number
from tercio.model.job import JobSpec
from tercio.model.views import JobView


class Seen:
    """One job as it is shown, with what only its own page tells."""

    def __init__(self, session: Session, view: JobView) -> None:
        self.view, self._session = view, session
        self.now_s = session.now_s()
        self._spec: JobSpec | None = view.spec

    @property
    def spec(self) -> JobSpec | None:
        """Its spec; asks the server the first time."""
        if self._spec is None:
            self._spec = self._session.client.job(self.view.id).spec
        return self._spec

    @property
    def elapsed_s(self) -> float:
        """How long it has run."""
        if self.view.started_s is None or is_waiting_array(self.view):
            return 0.0
        return max((self.view.ended_s or self.now_s) - self.view.started_s, 0.0)


class Column(NamedTuple):
    """A column: the field, its width (0: as wide as it is), on which side its blanks are."""

    name: str
    width: int = 0
    is_right: bool = False


def clock(seconds: float, *, is_long: bool) -> str:
    """Write a time as Slurm does: `1-02:03:04`, `2:03:04`; `is_long` keeps the hours."""
    whole = int(seconds)
    days, rest = divmod(whole, 86_400)
    hours, minutes, second = rest // 3600, rest // 60 % 60, rest % 60
    if days:
        return f"{days}-{hours:02d}:{minutes:02d}:{second:02d}"
    if is_long:
        return f"{hours:02d}:{minutes:02d}:{second:02d}"
    return f"{hours}:{minutes:02d}:{second:02d}" if hours else f"{minutes}:{second:02d}"


def instant(at_s: float | None, missing: str) -> str:
    """Write an instant in local time, as Slurm does."""
    return missing if at_s is None else time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at_s))


def _cpus(seen: Seen) -> str:
    spec = seen.spec
    cores_milli = sum(g.tasks * (g.per_task.cpus_milli or 0) for g in spec.groups) if spec else 0
    return str(max(-(-cores_milli // 1000), seen.view.task_count))


def _tres(seen: Seen) -> str:
    pieces = [f"cpu={_cpus(seen)}", f"node={_nodes(seen)}"]
    pieces += [f"gres/gpu:{t.lower()}={n:g}" for t, n in seen.view.devices.items()]
    return ",".join(pieces)


def _gres(seen: Seen) -> str:
    found = [f"gres/gpu:{kind.lower()}:{n:g}" for kind, n in seen.view.devices.items()]
    return ",".join(found) or "N/A"


def _nodes(seen: Seen) -> str:
    return str(len(seen.view.nodes) or seen.view.task_count)


def _label(name: str) -> Callable[[Seen], str]:
    return lambda seen: seen.view.labels.get(f"slurm-{name}", "")


def _limit(seen: Seen) -> str:
    limit_s = seen.view.limit_s
    return "UNLIMITED" if limit_s is None else clock(limit_s, is_long=False)


def _left(seen: Seen) -> str:
    limit_s = seen.view.limit_s
    if limit_s is None:
        return "UNLIMITED"
    return clock(max(limit_s - seen.elapsed_s, 0.0), is_long=False)


def _start_s(seen: Seen) -> float | None:
    view = seen.view
    return view.started_s or (view.start.at_s if view.start is not None else None)


def _id(seen: Seen) -> str:
    view, shown = seen.view, shown_id(seen.view.id)
    if not is_waiting_array(view) or view.array is None:
        return shown
    return f"{shown}_[{view.array.pending}]"


def _index(seen: Seen) -> str:
    return seen.view.id.rpartition(".")[2] if array_parent(JobId(seen.view.id)) else "N/A"


def _parent(seen: Seen) -> str:
    job = JobId(seen.view.id)
    return str(job_number(array_parent(job) or job))


def _where(seen: Seen) -> str:
    nodes = "" if is_waiting_array(seen.view) else ",".join(seen.view.nodes)
    return nodes or f"({reason_of(seen.view)})"


def _exit(seen: Seen) -> str:
    code = seen.view.exit_code or 0
    # A command that a signal ended has 128 and the signal as its code.
    return f"0:{code - 128}" if code > 128 else f"{code}:0"


def _cpu_seconds(seen: Seen) -> float:
    return seen.elapsed_s * int(_cpus(seen))


def _memory(seen: Seen) -> str:
    spec = seen.spec
    asked = sum(g.tasks * (g.per_task.memory_bytes or 0) for g in spec.groups) if spec else 0
    return f"{-(-asked // 1024**2)}M" if asked else ""


UNMEASURED: Final = (
    "maxrss", "maxvmsize", "averss", "avevmsize", "avecpu", "totalcpu", "usercpu", "systemcpu",
    "maxdiskread", "maxdiskwrite", "consumedenergy", "tresusageinave", "tresusageinmax",
)  # fmt: skip
"""Fields of sacct that nothing here counts: scripts that ask for them get empty ones."""

FIELDS: Final[dict[str, tuple[str, Callable[[Seen], str]]]] = {
    "jobid": ("JOBID", _id),
    "jobidraw": ("JobIDRaw", lambda s: str(job_number(JobId(s.view.id)))),
    "arrayjobid": ("ARRAY_JOB_ID", _parent),
    "arraytaskid": ("ARRAY_TASK_ID", _index),
    "partition": ("PARTITION", lambda s: s.view.labels.get("slurm-partition", s.view.queue)),
    "name": ("NAME", lambda s: s.view.name),
    "username": ("USER", lambda s: s.view.user),
    "statecompact": ("ST", lambda s: state_of(s.view).code),
    "state": ("STATE", lambda s: state_of(s.view).word),
    "timeused": ("TIME", lambda s: clock(s.elapsed_s, is_long=False)),
    "elapsed": ("Elapsed", lambda s: clock(s.elapsed_s, is_long=True)),
    "elapsedraw": ("ElapsedRaw", lambda s: str(int(s.elapsed_s))),
    "timelimit": ("TIME_LIMIT", _limit),
    "timeleft": ("TIME_LEFT", _left),
    "numnodes": ("NODES", _nodes),
    "reasonlist": ("NODELIST(REASON)", _where),
    "nodelist": ("NODELIST", lambda s: ",".join(s.view.nodes)),
    "reason": ("REASON", lambda s: reason_of(s.view)),
    "account": ("ACCOUNT", _label("account")),
    "qos": ("QOS", _label("qos")),
    "comment": ("COMMENT", _label("comment")),
    "priority": ("PRIORITY", lambda s: str(s.view.priority)),
    "numcpus": ("CPUS", _cpus),
    "gres": ("TRES_PER_NODE", _gres),
    "alloctres": ("AllocTRES", _tres),
    "starttime": ("START_TIME", lambda s: instant(_start_s(s), "N/A")),
    "endtime": ("END_TIME", lambda s: instant(s.view.ended_s, "N/A")),
    "submittime": ("SUBMIT_TIME", lambda s: instant(s.view.submitted_s, "N/A")),
    "start": ("Start", lambda s: instant(s.view.started_s, "Unknown")),
    "end": ("End", lambda s: instant(s.view.ended_s, "Unknown")),
    "exitcode": ("ExitCode", _exit),
    "derivedexitcode": ("DerivedExitCode", _exit),
    "ntasks": ("NTasks", lambda s: str(s.view.task_count)),
    "reqmem": ("ReqMem", _memory),
    "cputime": ("CPUTime", lambda s: clock(_cpu_seconds(s), is_long=True)),
    "cputimeraw": ("CPUTimeRAW", lambda s: str(int(_cpu_seconds(s)))),
    "timelimitraw": ("TimelimitRaw", lambda s: str(int((s.view.limit_s or 0) / 60)) or ""),
    "workdir": ("WorkDir", lambda s: (s.spec.workdir if s.spec else None) or ""),
    "cluster": ("Cluster", lambda _: "tercio"),
    **{name: (name, lambda _: "") for name in UNMEASURED},
}
"""Title and value by name, of squeue and sacct both."""

ALIASES: Final = {
    "jobarrayid": "jobid", "user": "username", "jobname": "name", "nnodes": "numnodes",
    "reqcpus": "numcpus", "alloccpus": "numcpus", "ncpus": "numcpus", "allocnodes": "numnodes",
    "submit": "submittime", "reqtres": "alloctres", "prioritylong": "priority",
    "tres-per-node": "gres", "eligible": "submittime",
}  # fmt: skip
LETTERS: Final = {
    "i": "jobid", "A": "jobidraw", "F": "arrayjobid", "K": "arraytaskid", "P": "partition",
    "j": "name", "u": "username", "t": "statecompact", "T": "state", "M": "timeused",
    "l": "timelimit", "L": "timeleft", "D": "numnodes", "R": "reasonlist", "N": "nodelist",
    "r": "reason", "a": "account", "q": "qos", "k": "comment", "p": "priority", "Q": "priority",
    "C": "numcpus", "b": "gres", "S": "starttime", "e": "endtime", "V": "submittime",
}  # fmt: skip


def read_letters(text: str) -> list[Column | str]:
    """Read `%.18i %j`: columns, and the text between them."""
    found: list[Column | str] = []
    for literal, dot, width, letter in re.findall(r"([^%]+)|%(\.?)(\d*)([A-Za-z])", text):
        if literal:
            found.append(literal)
        elif letter not in LETTERS:
            hint = f"known are {' '.join(f'%{known}' for known in LETTERS)}"
            raise UserError(f"%{letter} is no field here", hint=hint)
        else:
            found.append(Column(LETTERS[letter], int(width or 0), is_right=bool(dot)))
    return found


def read_names(text: str, *, width: int) -> list[Column | str]:
    """Read `JobID:.10,State` (squeue) or `JobID%-20,State` (sacct)."""
    found: list[Column | str] = []
    for piece in text.split(","):
        parts = re.fullmatch(r"\s*([A-Za-z/-]+)(?:([:%])([.-]?)(\d+))?\s*", piece)
        name = parts[1].lower() if parts else ""
        name = ALIASES.get(name, name)
        if parts is None or name not in FIELDS:
            hint = did_you_mean(name, [*FIELDS, *ALIASES]) or f"known are {', '.join(FIELDS)}"
            raise UserError(f"'{piece.strip()}' is no field here", hint=hint)
        is_right = parts[3] == "." or (parts[2] == "%" and parts[3] != "-")
        found.append(Column(name, int(parts[4] or width), is_right=is_right))
    return found


def line(columns: Sequence[Column | str], value: Callable[[str], str], *, mark: str = "") -> str:
    """Return one line; a value that is too wide is cut, its end marked as sacct does."""
    found = ""
    for column in columns:
        if isinstance(column, str):
            found += column
            continue
        text = value(column.name)
        if column.width and len(text) > column.width:
            text = text[: column.width - len(mark)] + mark
        found += text.rjust(column.width) if column.is_right else text.ljust(column.width)
    return found.rstrip() if not mark else found
