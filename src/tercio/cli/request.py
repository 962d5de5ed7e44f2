"""What `submit` and `plan` send: the job file or command, overrides, secrets, work directory."""

from __future__ import annotations

import functools
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import click

from tercio.cli.completing import Name, among
from tercio.cli.progress import Progress
from tercio.cli.session import Session
from tercio.client import JobRequest
from tercio.errors import UserError
from tercio.model.job import Framework
from tercio.model.units import format_memory

Function = TypeVar("Function", bound=Callable[..., Any])

_SPOOL_BYTES: Final = 8 * 1024**2


class Wish(NamedTuple):
    """The options that describe a job, as typed."""

    file: str | None
    argv: tuple[str, ...]
    gpus: str | None = None
    nodes: str | None = None
    cpus: str | None = None
    memory: str | None = None
    array: str | None = None
    framework: str | None = None
    image: str | None = None
    name: str | None = None
    queue: str | None = None
    priority: int | None = None
    time: str | None = None
    env: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    secret_stdin: str | None = None
    workdir: str | None = None
    has_workdir: bool = True
    is_held: bool = False
    waits_for_capacity: bool = False


def job_options(function: Function) -> Function:
    """Add the options that describe a job; the command receives them as `wish`."""

    @functools.wraps(function)
    @click.pass_context
    def with_wish(ctx: click.Context, *args: Any, **kwargs: Any) -> Any:
        from tercio.cli.verbs import after_dashes

        taken = {key: kwargs.pop(key) for key in Wish._fields if key in kwargs}
        return function(*args, wish=Wish(argv=after_dashes(ctx), **taken), **kwargs)

    options = (
        click.argument("file", required=False, metavar="[FILE]", type=click.Path()),
        click.option("-g", "--gpus", metavar="H100:8", help="Devices of each task."),
        click.option("-n", "--nodes", metavar="N", help="Tasks of the gang, each on one node."),
        click.option("--cpus", metavar="N", help="Cores of each task."),
        click.option("--memory", metavar="64GiB", help="Memory of each task."),
        click.option("--image", metavar="IMAGE", help="Container image to run in."),
        click.option(
            "--framework",
            metavar="torchrun",
            shell_complete=among([str(framework) for framework in Framework]),
            help="How tasks find each other.",
        ),
        click.option("--array", metavar="0-99%8", help="One element per index, 8 at once."),
        click.option("--name", metavar="NAME", help="Name of the job."),
        click.option("--queue", metavar="QUEUE", type=Name("queue"), help="Queue to wait in."),
        click.option("--priority", metavar="N", type=int, help="Larger first, inside one queue."),
        click.option("-t", "--time", metavar="8h", help="Limit of an attempt."),
        click.option("--env", multiple=True, metavar="K=V", help="Set K; K alone passes yours."),
        click.option(
            "--secret",
            "secrets",
            multiple=True,
            metavar="NAME",
            help="Pass a secret: its value is your environment's, or asked for.",
        ),
        click.option("--secret-stdin", metavar="NAME", help="Pass a secret read from stdin."),
        click.option(
            "--workdir",
            metavar="DIR",
            help="Snapshot DIR; default: the file's `workdir`; for a command this one.",
        ),
        click.option(
            "--no-workdir", "has_workdir", flag_value=False, default=True, help="No snapshot."
        ),
        click.option(
            "--wait-for-capacity",
            "waits_for_capacity",
            is_flag=True,
            help="Queue it even if no node there is could ever hold it.",
        ),
        click.option("--hold", "is_held", is_flag=True, help="Wait for 'tercio release'."),
    )
    wrapped: Any = with_wish
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[no-any-return]


def build_request(session: Session, wish: Wish, *, is_plan: bool) -> JobRequest:
    """Read the file, gather secrets and upload the work directory; a plan does neither.

    Raises:
        UserError: `invalid` or `too_large`, before anything was sent.
    """
    overrides = _overrides(wish)
    if wish.file is None and not wish.argv:
        raise UserError(
            "nothing to run: neither a job file nor a command",
            hint="write 'tercio submit job.yaml' or 'tercio submit -- python train.py'",
        )
    text, source, documents = _read_file(wish.file)
    names = _secret_names(wish, documents)
    root = _workdir_root(wish, documents)
    if names:
        overrides["secrets"] = names
    if text is None:
        overrides.setdefault("name", _default_name(wish.argv))
    if root is not None:
        # The server puts the snapshot in the place of `.`; a plan needs none, and any absolute
        # path on the nodes stands for it.
        overrides["workdir"] = "/" if is_plan else "."
    return JobRequest(
        file=text,
        job=None if text is not None else {},
        source=source,
        overrides=overrides,
        secrets=dict.fromkeys(names, "") if is_plan else _secrets(session, wish, names),
        workdir=None if root is None or is_plan else upload(session, root),
        hold=wish.is_held,
    )


def upload(session: Session, root: str) -> str:
    """Snapshot a directory, send it and return its id."""
    from tercio.cli.snapshot import list_files, write_snapshot

    with Progress(session, f"packing {root}") as progress:
        files = list_files(root)
        with tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES) as packed:
            write_snapshot(files, packed)
            progress.say(f"uploading {len(files)} files, {format_memory(packed.tell())}")
            packed.seek(0)
            return session.client.upload_workdir(packed)


def _overrides(wish: Wish) -> dict[str, Any]:
    given: dict[str, Any] = {
        "gpus": wish.gpus,
        "nodes": wish.nodes,
        "cpus": wish.cpus,
        "memory": wish.memory,
        "array": wish.array,
        "framework": wish.framework,
        "image": wish.image,
        "name": wish.name,
        "queue": wish.queue,
        "priority": wish.priority,
        "time": wish.time,
        "env": _environment(wish.env) or None,
        "wait_for_capacity": wish.waits_for_capacity or None,
        # One word is a shell line as it stands; several are quoted back into one.
        "run": (wish.argv[0] if len(wish.argv) == 1 else shlex.join(wish.argv)) or None,
    }
    if wish.nodes is not None and wish.nodes.isdigit():
        given["nodes"] = int(wish.nodes)
    return {key: value for key, value in given.items() if value is not None}


def _environment(pairs: Sequence[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or (not equals and name not in os.environ):
            raise UserError(
                f"--env: '{pair}' has no value", hint="write NAME=VALUE, or export NAME first"
            )
        found[name] = value if equals else os.environ[name]
    return found


def _read_file(path: str | None) -> tuple[str | None, str | None, list[Mapping[str, Any]]]:
    """Return text, name for messages and the parsed documents of a job file, `-` for stdin."""
    if path is None:
        return None, None, []
    if path == "-":
        text, source = sys.stdin.read(), "stdin"
    else:
        try:
            with open(path, encoding="utf-8") as file:
                text, source = file.read(), path
        except FileNotFoundError:
            hint = "put '--' before a command: tercio submit -- " + path
            raise UserError(f"there is no file {path}", code="not_found", hint=hint) from None
        except UnicodeDecodeError:
            raise UserError(f"{path} is not a text file", hint="give a YAML job file") from None
    from tercio.formats.foreign.detect import NATIVE, detect, read_foreign

    # The server reads the file again; here only its work directory and secrets matter.
    kind = detect(text, source)
    if kind != NATIVE:
        found = read_foreign(text, source=source, kind=kind, now_s=time.time())
        return text, source, list(found.jobs)
    import yaml

    try:
        parsed = list(yaml.safe_load_all(text))
    except yaml.YAMLError:
        # The server says what is wrong with it, by line.
        parsed = []
    return text, source, [document for document in parsed if isinstance(document, dict)]


def _workdir_root(wish: Wish, documents: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the directory to snapshot: the option's, the file's, for a command the current."""
    if not wish.has_workdir:
        if any(document.get("workdir") for document in documents):
            raise UserError(
                f"{wish.file} names a work directory", hint="take `workdir` out of the file"
            )
        return None
    if wish.workdir is not None:
        return wish.workdir
    if wish.file is None:
        return "."
    named = list(dict.fromkeys(str(d["workdir"]) for d in documents if d.get("workdir")))
    if len(named) > 1:
        raise UserError(
            f"the jobs of {wish.file} name different work directories: {', '.join(named)}",
            hint="give them a file each, or one --workdir for all",
            field="workdir",
        )
    if not named or os.path.isabs(named[0]):
        return None
    base = "." if wish.file == "-" else os.path.dirname(wish.file)
    return os.path.normpath(os.path.join(base or ".", named[0]))


def _secret_names(wish: Wish, documents: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the secrets of the options and of the file, each once."""
    listed = [d.get("secrets") for d in documents]
    names = [n for part in listed if isinstance(part, list) for n in part if isinstance(n, str)]
    piped = [] if wish.secret_stdin is None else [wish.secret_stdin]
    return list(dict.fromkeys(_secret_name(name) for name in (*wish.secrets, *piped, *names)))


def _secrets(session: Session, wish: Wish, names: Sequence[str]) -> dict[str, str]:
    """Take the values of the secrets from the environment, a prompt or stdin."""
    values: dict[str, str] = {}
    if wish.secret_stdin is not None:
        if wish.file == "-":
            raise UserError("stdin cannot give both the job file and a secret")
        values[wish.secret_stdin] = sys.stdin.read().rstrip("\n")
    for name in names:
        if name in values:
            continue
        if name in os.environ:
            values[name] = os.environ[name]
        elif session.can_ask():
            values[name] = click.prompt(f"value of {name}", hide_input=True, err=True)
        else:
            raise UserError(
                f"secret {name} has no value",
                hint=f"export {name}, or pipe it in with --secret-stdin {name}",
                field="secrets",
            )
    return values


def _secret_name(name: str) -> str:
    if "=" in name:
        raise UserError(
            "a secret may not stand on the command line: everyone on this machine can read it",
            hint=f"export {name.partition('=')[0]} and write --secret {name.partition('=')[0]}",
        )
    return name


def _default_name(argv: Sequence[str]) -> str:
    """Name a job after its command: `python train.py --lr 1` is `train`."""
    words = shlex.split(argv[0]) if len(argv) == 1 else list(argv)
    launchers = ("python", "python3", "bash", "sh", "env", "torchrun", "uv", "run", "accelerate")
    plain = [w for w in words if not w.startswith("-") and os.path.basename(w) not in launchers]
    scripts = [word for word in plain if word.endswith((".py", ".sh"))]
    chosen = os.path.basename((scripts or plain or words)[0]).rsplit(".", 1)[0].lower()
    clean = "".join(c if c.isascii() and c.isalnum() else "-" for c in chosen).strip("-")
    return clean[:63].strip("-") or "job"
