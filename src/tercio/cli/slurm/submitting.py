"""What sbatch and srun send: one script with the options of file, environment and command line.

The server reads it as any batch script, so that its partitions and queues count.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tercio.client import JobRequest
from tercio.errors import UserError
from tercio.formats.foreign.sbatch import ENVIRONMENT
from tercio.formats.foreign.sbatch_options import (
    FLAGS,
    Option,
    count_options,
    directives,
    parse_options,
    split,
)
from tercio.formats.foreign.sbatch_script import SHELLS, wrap_script
from tercio.formats.foreign.sbatch_values import exports

OWN: Final = frozenset({"parsable", "wait", "test-only", "quiet", "verbose", "wrap"})
"""Options that are the program's, not the job's."""

_KEPT_HERE: Final = re.compile(
    r"(TERCIO|SLURM|SBATCH|SRUN|SSH|XDG|DBUS|TMUX|LC|CUDA_VISIBLE|MASTER)_.*|_|__.*|HOME|USER|"
    r"LOGNAME|SHELL|PWD|OLDPWD|SHLVL|TERM.*|COLORTERM|LS_COLORS|DISPLAY|XAUTHORITY|HOSTNAME|MAIL|"
    r"PS[0-9]|STY|TMUX|TMPDIR|NODE_RANK|RANK|LOCAL_RANK|WORLD_SIZE|MEMORY_PRESSURE.*"
)
"""Variables of the session: a task has its own."""

_SECRET: Final = re.compile(r".*(TOKEN|SECRET|PASSW|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|CREDENTIAL)")


class Ordered(NamedTuple):
    """A command line that was read: the job's options, the program's, and the words after."""

    options: list[Option]
    own: dict[str, str]
    rest: list[str]


def read_command(words: Sequence[str]) -> Ordered:
    """Part the options of a command line from the script and its arguments.

    Raises:
        UserError: an unknown option, or a heterogeneous job.
    """
    if ":" in words:
        hint = "write groups in a job file: see tercio help job-file"
        raise UserError("heterogeneous jobs are not read", code="unsupported", hint=hint)
    at = count_options(words)
    options = list(parse_options(words[:at], source="", line=0))
    rest = list(words[at:])
    return Ordered(
        [option for option in options if option.name not in OWN],
        {option.name: option.value for option in options if option.name in OWN},
        rest[1:] if rest[:1] == ["--"] else rest,
    )


def compose(
    text: str,
    *,
    options: Sequence[Option],
    arguments: Sequence[str],
    environment: Mapping[str, str],
    directory: str,
) -> tuple[str, list[Option]]:
    """Return the script with all options in it, and these.

    The command line comes before the environment (`SBATCH_*`), and that before the file.
    """
    first, _, rest = text.partition("\n")
    shebang = first if first.startswith("#!") else "#!/bin/sh"
    found, _ = directives(text)
    given = [*_from_environment(environment), *options]
    names = {option.name for option in given}
    if names & {"gres", "gpus-per-node"}:
        names |= {"gres", "gpus-per-node"}
    lines: list[str] = []
    all_options: list[Option] = []
    for _, line in found:
        words = split(line, source="script", line=0)
        for option in parse_options(words, source="script", line=0):
            if option.name not in names and option.name not in OWN:
                all_options.append(option)
        if others := words[count_options(words) :]:
            lines.append(f"#SBATCH {shlex.join(others)}")
    all_options += given
    by_name = {option.name: option for option in all_options}
    chdir = by_name.get("chdir")
    where = os.path.abspath(os.path.join(directory, chdir.value if chdir else "."))
    all_options = [*[o for o in all_options if o.name != "chdir"], Option("chdir", where, 0)]
    lines += [f"#SBATCH {_written(option)}" for option in all_options]
    body = rest if first.startswith("#!") else text
    counted = {number - (1 if first.startswith("#!") else 0) for number, _ in found}
    body = "\n".join(
        line for number, line in enumerate(body.splitlines(), start=1) if number not in counted
    )
    program = [word.rpartition("/")[2] for word in shebang[2:].split()]
    if not program or not {program[0], program[-1]} & set(SHELLS):
        body = wrap_script(text, arguments=tuple(arguments))
        shebang = "#!/bin/bash"
    elif arguments:
        body = f"set -- {shlex.join(arguments)}\n{body}"
    return "\n".join([shebang, *lines, body]) + "\n", all_options


def request(
    text: str, options: Sequence[Option], *, source: str, environment: Mapping[str, str]
) -> JobRequest:
    """Return what is sent, with the variables that `--export` lets through.

    What looks like a secret goes as one: no output, log or journal ever shows it.
    """
    export = next((o.value for o in reversed(options) if o.name == "export"), "ALL")
    wanted = exports(export or "ALL")
    explicit = {name for name, value in wanted if value is not None}
    names = [name for name, value in wanted if value is None and name in environment]
    if ("ALL", None) in wanted:
        names += [name for name in environment if not _KEPT_HERE.fullmatch(name)]
    passed = {
        name: environment[name]
        for name in names
        if name not in explicit and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)
    }
    secrets = {name: value for name, value in passed.items() if _SECRET.match(name.upper())}
    plain = {name: value for name, value in passed.items() if name not in secrets}
    overrides: dict[str, object] = {"env": plain} if plain else {}
    if secrets:
        overrides["secrets"] = list(secrets)
    return JobRequest(file=text, source=source, overrides=overrides, secrets=secrets)


def _from_environment(environment: Mapping[str, str]) -> list[Option]:
    return [
        Option(name, "" if name in FLAGS else environment[variable], 0)
        for variable, name in ENVIRONMENT.items()
        if variable in environment
    ]


def _written(option: Option) -> str:
    if "\n" in option.value:
        raise UserError(f"--{option.name}: a line end in the value", hint="write it on one line")
    return shlex.quote(f"--{option.name}={option.value}") if option.value else f"--{option.name}"
