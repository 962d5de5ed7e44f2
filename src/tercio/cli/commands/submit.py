"""`tercio submit`."""

from __future__ import annotations

import click
import msgspec

from tercio.cli.commands.plan import show_plan
from tercio.cli.following import print_log, report_end, wait_for_end
from tercio.cli.output import Output, output_options, write, write_body
from tercio.cli.request import Wish, build_request, job_options
from tercio.cli.session import Session
from tercio.cli.verbs import Verb, pass_session
from tercio.model.views import SubmitAnswer


@click.command(
    cls=Verb,
    takes_argv=True,
    examples="""
    tercio submit job.yaml --follow
    tercio submit --gpus H100:8 --nodes 2 --time 8h -- torchrun train.py
    tercio submit --gpus 1 -- 'python prepare.py && python train.py'
    tercio submit job.yaml --queue research --plan    # only look
    HF_TOKEN=... tercio submit job.yaml --secret HF_TOKEN
    """,
)
@job_options
@click.option("-f", "--follow", is_flag=True, help="Show the log until the job has ended.")
@click.option("-w", "--wait", "is_waiting", is_flag=True, help="Wait until the job has ended.")
@click.option("--plan", "--dry", "is_plan", is_flag=True, help="Dry run, as 'tercio plan'.")
@click.option("--key", metavar="KEY", help="Submit once: the same key returns the same job.")
@output_options
@pass_session
def command(
    session: Session,
    *,
    wish: Wish,
    follow: bool,
    is_waiting: bool,
    is_plan: bool,
    key: str | None,
    output: Output,
) -> int:
    """Submit a job from a file, or from a command after `--`.

    Options win over the file. With --follow or --wait the exit code is 1 when the job failed.
    Several jobs, as those of an array, have no one log: --follow waits for all of them.
    """
    if is_plan:
        return show_plan(session, build_request(session, wish, is_plan=True), output)
    request = build_request(session, wish, is_plan=False)
    answer = session.client.submit(request, key=key)
    for warning in answer.warnings:
        session.warn(warning)
    _show(session, answer, output, has_next=not (follow or is_waiting))
    if follow and _is_several(session, answer):
        session.note("several jobs have no one log: waiting for all; each: tercio logs -f JOB")
    elif follow:
        print_log(session, answer.ids[0])
    if follow or is_waiting:
        return report_end(session, wait_for_end(session, answer.ids))
    return 0


def _is_several(session: Session, answer: SubmitAnswer) -> bool:
    return len(answer.ids) > 1 or session.client.job(answer.ids[0]).array is not None


def _show(session: Session, answer: SubmitAnswer, output: Output, *, has_next: bool) -> None:
    match output.format:
        case "json" | "jsonl":
            write_body(msgspec.json.encode(answer))
        case "name" | "csv":
            for job_id in answer.ids:
                write(job_id)
        case _:
            for job_id in answer.ids:
                write(job_id)
            if not has_next:
                return
            first = answer.ids[0]
            session.note(
                session.paint(f"next: tercio logs -f {first} · tercio explain {first}", "dim")
            )
