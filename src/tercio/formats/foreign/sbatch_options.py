"""The options of sbatch: long and short names, which take a value, which change nothing here.

Names and forms: SchedMD/slurm, doc/man/man1/sbatch.1 (22.05 to 25.05), and NVIDIA/pyxis for
`--container-*`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from tercio.errors import UserError, did_you_mean

SHORT: Final = {
    "A": "account", "a": "array", "b": "begin", "B": "extra-node-info", "C": "constraint",
    "c": "cpus-per-task", "D": "chdir", "d": "dependency", "e": "error", "F": "nodefile",
    "G": "gpus", "H": "hold", "I": "immediate", "i": "input", "J": "job-name", "k": "no-kill",
    "L": "licenses", "M": "clusters", "m": "distribution", "N": "nodes", "n": "ntasks",
    "O": "overcommit", "o": "output", "p": "partition", "Q": "quiet", "q": "qos",
    "s": "oversubscribe", "S": "core-spec", "t": "time", "v": "verbose", "W": "wait",
    "w": "nodelist", "x": "exclude",
}  # fmt: skip
OPTIONAL: Final = frozenset(
    {"exclusive", "no-kill", "requeue", "get-user-env", "immediate", "propagate", "nice",
     "kill-on-bad-exit"}
)  # fmt: skip
"""Options whose value may be left out; it is then written with `=`."""
FLAGS: Final = frozenset(
    {
        "contiguous", "hold", "ignore-pbs", "no-requeue", "overcommit", "oversubscribe",
        "parsable", "quiet", "reboot", "spread-job", "stepmgr", "test-only", "use-min-nodes",
        "verbose", "wait", "container-mount-home", "no-container-mount-home",
        "container-remap-root", "no-container-remap-root", "container-writable",
        "container-readonly", "container-entrypoint", "no-container-entrypoint",
    }
)  # fmt: skip
VALUED: Final = frozenset(
    {
        *SHORT.values(), "acctg-freq", "batch", "bb", "bbf", "cluster-constraint", "comment",
        "container", "container-env", "container-image", "container-mounts", "container-name",
        "container-save", "container-workdir", "cores-per-socket", "cpu-freq", "cpus-per-gpu",
        "deadline", "delay-boot", "export", "export-file", "extra", "gid", "gpu-bind", "gpu-freq",
        "gpus-per-node", "gpus-per-socket", "gpus-per-task", "gres", "gres-flags", "hint",
        "kill-on-invalid-dep", "mail-type", "mail-user", "mcs-label", "mem", "mem-bind",
        "mem-per-cpu", "mem-per-gpu", "mincpus", "network", "ntasks-per-core", "ntasks-per-gpu",
        "ntasks-per-node", "ntasks-per-socket", "open-mode", "power", "prefer", "priority",
        "profile", "reservation", "segment", "signal", "sockets-per-node", "switches",
        "thread-spec", "threads-per-core", "time-min", "tmp", "tres-bind", "tres-per-task", "uid",
        "wait-all-nodes", "wckey", "wrap", "x11",
    }
) - FLAGS - OPTIONAL  # fmt: skip
KNOWN: Final = VALUED | FLAGS | OPTIONAL

IDLE: Final = {
    "hint": "binding of threads is left to the program",
    "distribution": "tasks are numbered node by node",
    "mem-bind": "binding of memory is left to the program",
    "tres-bind": "devices are bound by Tercio",
    "gpu-bind": "devices are bound by Tercio",
    "gres-flags": "devices are chosen by their links",
    "cpu-freq": "clocks are the site's",
    "gpu-freq": "clocks are the site's",
    "wait-all-nodes": "a gang always starts when all its nodes are ready",
    "no-kill": "a lost node restarts the gang; write repair: task to go on without it",
    "kill-on-invalid-dep": "a job whose dependency can no longer hold is cancelled",
    "kill-on-bad-exit": "a task that fails stops its gang",
    "open-mode": "logs are kept by attempt, none is overwritten",
    "propagate": "limits are the site's",
    "profile": "tercio shows power and use of every device",
    "acctg-freq": "sampling is the site's",
    "parsable": "tercio submit -q prints the id alone",
    "quiet": "tercio submit -q",
    "verbose": "tercio explain says more",
    "wait": "tercio wait JOB waits",
    "ignore-pbs": "only #SBATCH lines are read",
    "use-min-nodes": "the fewest nodes are taken anyway",
    "overcommit": "cores are held exactly",
    "delay-boot": "nodes are not booted",
    "thread-spec": "cores for the system are the site's",
    "core-spec": "cores for the system are the site's",
    "ntasks-per-core": "threads are counted as the node reports them",
    "ntasks-per-socket": "sockets are not modelled",
    "threads-per-core": "threads are counted as the node reports them",
    "cores-per-socket": "sockets are not modelled",
    "sockets-per-node": "sockets are not modelled",
    "extra-node-info": "sockets are not modelled",
    "gpus-per-socket": "sockets are not modelled",
    "power": "power is the policy's: budgets",
    "stepmgr": "steps are processes of the task",
    "x11": "no display is forwarded",
    "get-user-env": "a task starts with a login environment of its own",
}
"""Options that need no counterpart, and why."""

UNKEPT: Final = {
    "mail-type": "write notify: [{on: [failed, finished], url: https://...}]",
    "mail-user": "write notify: [{on: [failed, finished], url: https://...}]",
    "licenses": "licences are not counted; limit the queue's running_jobs in their place",
    "bb": "stage data inside setup",
    "bbf": "stage data inside setup",
    "network": "fabric settings come from the site",
    "tmp": "local disk is not counted",
    "reboot": "nodes are not rebooted for a job",
    "uid": "the user is the one of the token",
    "gid": "the group is the one of the user",
    "nodefile": "write the nodes under nodes",
    "clusters": "write sites: [...]",
    "cluster-constraint": "write sites: [...]",
    "batch": "every node runs the script",
    "prefer": "write alternatives in per_task.devices",
    "mcs-label": "isolation is the tenant's",
    "extra": "write labels",
    "time-min": "a shorter limit is never chosen; write the limit you need",
    "contiguous": "write topology: {same: rack}",
    "export-file": "write env",
    "tres-per-task": "write per_task",
    "immediate": "tercio plan says at once whether it would start now",
    "test-only": "use tercio plan",
    "input": "redirect inside the script",
    "container": "OCI bundles are not started; write image",
    "container-name": "containers are not kept between jobs",
    "container-save": "containers are not saved",
}
"""Options without a counterpart, and what to write in their place."""


class Option(NamedTuple):
    """One option as given: canonical long name, value ('' for a flag), line (0: command line)."""

    name: str
    value: str
    line: int


def directives(text: str) -> tuple[list[tuple[int, str]], list[int]]:
    """Return the `#SBATCH` lines that count, and the numbers of those after the first command."""
    found: list[tuple[int, str]] = []
    late: list[int] = []
    has_begun = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("#SBATCH") and (len(line) == 7 or line[7] in " \t"):
            (late.append(number) if has_begun else found.append((number, line[7:].strip())))
        elif line.strip() and not line.lstrip().startswith("#"):
            has_begun = True
    return found, late


def parse_options(words: Sequence[str], *, source: str, line: int) -> Iterator[Option]:
    """Yield the options of a command line; stops at the first word that is none.

    Raises:
        UserError: an unknown option, or one without its value.
    """
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "--" or not word.startswith("-") or word == "-":
            return
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = _canonical(name, source, line)
            if name in VALUED and not equals:
                if at >= len(words):
                    raise _fault(source, line, f"--{name} has no value", f"write --{name}=VALUE")
                value = words[at]
                at += 1
            elif name in FLAGS and equals:
                raise _fault(source, line, f"--{name} takes no value", f"write --{name}")
            yield Option(name, value, line)
            continue
        letters = word[1:]
        while letters:
            name = SHORT.get(letters[0], "")
            if not name:
                hint = "write the long name of the option"
                raise _fault(source, line, f"-{letters[0]} is no option of sbatch", hint)
            if name in FLAGS or name in OPTIONAL:
                letters = letters[1:]
                yield Option(name, "", line)
                continue
            value = letters[1:].removeprefix("=")
            if not value:
                if at >= len(words):
                    raise _fault(
                        source, line, f"-{letters[0]} has no value", f"write --{name}=VALUE"
                    )
                value = words[at]
                at += 1
            yield Option(name, value, line)
            break


def count_options(words: Sequence[str]) -> int:
    """Return how many words options take before the script."""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-", "--"):
        word = words[at]
        at += 1
        name = word[2:].partition("=")[0] if word.startswith("--") else SHORT.get(word[1:2], "")
        takes = name in VALUED and "=" not in word
        if takes and (word.startswith("--") or len(word) == 2):
            at += 1
    return min(at, len(words))


def split(text: str, *, source: str, line: int) -> list[str]:
    """Split a directive into words: quotes hold blanks, `#` begins a remark."""
    try:
        return shlex.split(re.sub(r"(^|\s)#.*$", "", text) if "'" not in text else text)
    except ValueError as error:
        raise _fault(source, line, f"{error}".lower(), "close the quote") from None


def _canonical(name: str, source: str, line: int) -> str:
    if name in KNOWN:
        return name
    # As getopt does: any beginning that only one option has.
    begun = sorted(known for known in KNOWN if name and known.startswith(name))
    if len(begun) == 1:
        return begun[0]
    near = did_you_mean(f"--{name}", (f"--{known}" for known in KNOWN))
    what = f"--{name} could be {', '.join(f'--{b}' for b in begun[:4])}" if begun else ""
    raise _fault(source, line, what or f"--{name} is no option of sbatch", near or "remove it")


def _fault(source: str, line: int, problem: str, fix: str) -> UserError:
    where = f"{source}:{line}" if line else source
    return UserError(f"{where}: {problem}", hint=fix)
