"""`tercio convert`: a job file of one tool as that of another, with what is lost. No server."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

import click

from tercio.cli.verbs import Verb, Word
from tercio.errors import UserError

if TYPE_CHECKING:
    from tercio.formats.foreign.draft import Converted, Loss

KINDS: Final = ("native", "sbatch", "sky", "dstack", "kubernetes")
TARGETS: Final = ("native", "sbatch", "sky")


@click.command(
    cls=Verb,
    examples="""
    tercio convert train.sbatch > job.yaml
    tercio convert task.yaml --to sbatch
    tercio convert .dstack.yml -o json
    """,
)
@click.argument("file", metavar="FILE|-")
@click.option(
    "--to",
    "target",
    type=Word("target", TARGETS),
    default="native",
    metavar="FORMAT",
    help="native, sbatch or sky.",
    show_default=True,
)
@click.option(
    "--from",
    "kind",
    type=Word("kind", KINDS),
    metavar="FORMAT",
    help="native, sbatch, sky, dstack or kubernetes; default: seen from the file.",
)
@click.option(
    "--partition",
    "partitions",
    multiple=True,
    metavar="NAME=TYPE",
    help="Device type of a Slurm partition, such as gpu-a=A100-80GB.",
)
@click.option("-o", "output", type=Word("format", ("text", "json")), default="text",
              metavar="FORMAT", help="text, or json with the losses in it.")  # fmt: skip
def command(
    file: str, target: str, kind: str | None, partitions: tuple[str, ...], output: str
) -> int:
    """Turn a job file into another tool's, and say what is lost.

    The new file goes to standard output, the report to standard error: every field that means
    something else now, has no effect, or keeps the job from running.

    Exit code: 0 converted, 2 the file cannot be read, 8 something must not be left out.
    """
    from tercio.formats.foreign.detect import detect, read_foreign
    from tercio.formats.foreign.draft import Fate, SiteMap

    text, source = _read(file)
    kind = kind or detect(text, source)
    sites = SiteMap(partitions=dict(_pair(word) for word in partitions))
    if kind == "native":
        written, losses = _rewrite(text, source, target)
    else:
        found = read_foreign(text, source=source, kind=kind, sites=sites, now_s=time.time())
        written, losses = _write(found, target)
    if output == "json":
        _print_json(kind, target, written, losses)
    else:
        click.echo(written, nl=False)
        for loss in losses:
            click.echo(f"{source}: {loss.text}", err=True)
    return 8 if any(loss.fate is Fate.REFUSED for loss in losses) else 0


def _read(file: str) -> tuple[str, str]:
    if file == "-":
        return sys.stdin.read(), "stdin"
    try:
        with open(file, encoding="utf-8") as stream:
            return stream.read(), file
    except FileNotFoundError:
        hint = "name a job file, or - for standard input"
        raise UserError(f"there is no file {file}", code="not_found", hint=hint) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise UserError(f"cannot read {file}: {reason}") from None


def _pair(word: str) -> tuple[str, str]:
    name, equals, kind = word.partition("=")
    if not equals or not name or not kind:
        raise UserError(f"--partition: '{word}' names no type", hint="write gpu-a=A100-80GB")
    return name, kind


def _rewrite(text: str, source: str, target: str) -> tuple[str, tuple[Loss, ...]]:
    """Write a native file as another kind; as a native one it stays what it is."""
    from tercio.formats.foreign.write import WRITERS
    from tercio.formats.native import read_job

    specs = read_job(text, source=source).specs
    if target == "native":
        return text, ()
    if len(specs) > 1:
        raise UserError(f"{source}: {len(specs)} jobs", hint=f"a {target} file holds one job")
    return WRITERS[target](specs[0])


def _write(found: Converted, target: str) -> tuple[str, tuple[Loss, ...]]:
    from tercio.formats.foreign.draft import Fate
    from tercio.formats.foreign.write import WRITERS, write_native
    from tercio.formats.native import read_job_object

    if target == "native":
        if not any(loss.fate is Fate.REFUSED for loss in found.losses):
            for job in found.jobs:
                read_job_object(dict(job))  # what submit would refuse is no result
        return write_native(found.jobs), found.losses
    if len(found.jobs) != 1:
        raise UserError(f"{len(found.jobs)} jobs", hint=f"a {target} file holds one job")
    (spec,) = read_job_object(dict(found.jobs[0])).specs
    text, losses = WRITERS[target](spec)
    return text, (*found.losses, *losses)


def _print_json(kind: str, target: str, text: str, losses: tuple[Loss, ...]) -> None:
    import msgspec

    body = {
        "schema": "tercio/v1", "kind": "Conversion", "from": kind, "to": target, "file": text,
        "losses": [
            {"field": loss.field, "value": loss.value, "fate": loss.fate.value, "why": loss.why,
             "line": loss.line}
            for loss in losses
        ],
    }  # fmt: skip
    click.echo(msgspec.json.encode(body))
