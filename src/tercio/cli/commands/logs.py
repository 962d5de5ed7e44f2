"""`tercio logs`."""

from __future__ import annotations

import click
import msgspec

from tercio.cli.completing import Name
from tercio.cli.following import note_wait, write_line
from tercio.cli.names import find_job
from tercio.cli.output import write
from tercio.cli.session import Session
from tercio.cli.verbs import Verb, Word, pass_session
from tercio.model.units import parse_duration_s, parse_instant_s


@click.command(
    cls=Verb,
    examples="""
    tercio logs -f job-00001
    tercio logs llama-sft --task 3 --tail 100
    tercio logs job-00001 --since 10m -t
    """,
)
@click.argument("job", metavar="JOB", type=Name("job"))
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.option("--task", type=click.IntRange(0), metavar="N", help="Only this task.")
@click.option("--tail", type=click.IntRange(0), metavar="N", help="Only the last N lines.")
@click.option("--since", metavar="WHEN", help="Only since then: 10m, or an RFC 3339 instant.")
@click.option("-t", "--timestamps", is_flag=True, help="Show when each line was written.")
@click.option(
    "-o",
    "--output",
    "form",
    type=Word("format", ("text", "jsonl")),
    metavar="FORMAT",
    default="text",
    help="text, or jsonl: one object a line.",
)
@pass_session
def command(
    session: Session,
    *,
    job: str,
    follow: bool,
    task: int | None,
    tail: int | None,
    since: str | None,
    timestamps: bool,
    form: str,
) -> None:
    """Show the log of a job, of all its tasks or of one."""
    job_id = find_job(session, job)
    view = session.client.job(job_id)
    note_wait(session, view, is_following=follow)
    has_prefix = task is None and view.task_count > 1
    lines = session.client.logs(
        job_id,
        task=task,
        tail=tail,
        since_s=None if since is None else parse_since_s(session, since),
        is_following=follow,
    )
    for line in lines:
        if form == "jsonl":
            write(msgspec.json.encode(line).decode())
        else:
            write_line(session, line, has_prefix=has_prefix, has_time=timestamps)


def parse_since_s(session: Session, text: str) -> float:
    """Read `10m` as so long ago, and anything with a date as an instant."""
    if text[:4].isdigit() and "-" in text:
        return parse_instant_s(text, field="--since")
    return session.now_s() - parse_duration_s(text, field="--since")
