"""`tercio size probe`: a few steps of a job on the cluster, and what they say of the prediction."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tercio.cli.session import Session
from tercio.cli.verbs import Verb, pass_session
from tercio.errors import UserError

if TYPE_CHECKING:
    from tercio.model.job import JobSpec
    from tercio.model.views import JobView
    from tercio.sizing.catalogue import Catalogue, Gpu
    from tercio.sizing.devices import ModelBlock
    from tercio.sizing.probe import Foretold, Measured

STEPS_VARIABLE: Final = "TERCIO_PROBE_STEPS"
_POLL_FIRST_S: Final = 0.2
_POLL_LONGEST_S: Final = 5.0
_COUNT_STEPS: Final = ("sh", "-c", 'grep -c " step " "$TERCIO_MARKS"')
_FAR_RATIO: Final = 2.0
"""A speed so far from the prediction says that job and `model:` block differ."""


@click.command(
    "probe",
    cls=Verb,
    examples="""
    tercio size probe job.yaml
    tercio size probe job.yaml --steps 50 --save site.yaml
    """,
)
@click.argument("job", metavar="JOB.yaml")
@click.option("--steps", type=click.IntRange(5, 60), default=20, show_default=True)
@click.option("--limit", metavar="TIME", default="15m", show_default=True, help="Of the run.")
@click.option("--queue", metavar="QUEUE", help="Queue to wait in.")
@click.option("--step-tokens", metavar="N", help="Tokens of a step; default: as marked.")
@click.option("--site", metavar="FILE", help="The site's own prices and parts (YAML).")
@click.option("--save", metavar="FILE", help="Add the measured speed to this site file.")
@click.option(
    "-o", "output", type=click.Choice(["table", "json"]), default="table", show_default=True
)
@pass_session
def probe(
    session: Session,
    *,
    job: str,
    steps: int,
    limit: str,
    queue: str | None,
    step_tokens: str | None,
    site: str | None,
    save: str | None,
    output: str,
) -> int:
    """Run a job for a few steps and compare its speed with the prediction.

    The job marks its steps in the file that TERCIO_MARKS names. It is stopped after the steps;
    one that stops by itself after TERCIO_PROBE_STEPS ends sooner.
    """
    from tercio.cli import sizing_output as text
    from tercio.cli.sizing_input import load_catalogue
    from tercio.sizing.probe import block_tokens, measure
    from tercio.sizing.quantities import parse_count

    catalogue = load_catalogue(site or (save if save and Path(save).exists() else None))
    spec = read_probe_job(job)
    block = block_of(spec, catalogue)
    view = _run(session, job, steps=steps, limit=limit, queue=queue)
    said = parse_count(step_tokens, field="step-tokens") if step_tokens else None
    measured = measure(session.client.job_use(view.id).marks, step_tokens=said)
    gpu, gpus = _ran_on(view, spec, catalogue)
    assumed = ""
    if measured.step_tokens is None and block is not None:
        measured = measure(
            session.client.job_use(view.id).marks, step_tokens=block_tokens(block, gpus)
        )
        assumed = f"a step is {measured.step_tokens:,.0f} tokens, as the model block implies"
    foretold = _foretold(block, gpu, gpus, catalogue)
    ratio = _ratio(measured, foretold)
    if output == "json":
        body = {"job": view.id, "measured": measured, "predicted": foretold, "ratio": ratio}
        click.echo(text.as_json("SizingProbe", body))
    else:
        click.echo(probe_text(view.id, measured, foretold, gpus, assumed))
    if save is not None:
        session.note(_save(save, block, foretold, ratio))
    return 0


def read_probe_job(path: str) -> JobSpec:
    """The one job of a file. Raises UserError for several, or for an array."""
    from tercio.cli.sizing_input import read_file
    from tercio.formats.native import read_job

    (spec, *more) = read_job(read_file(path, "job").decode(), source=path).specs
    if more or spec.array is not None:
        raise UserError(
            f"{path} holds {'several jobs' if more else 'an array'}",
            field="job",
            hint="probe one job without `array`",
        )
    return spec


def block_of(spec: JobSpec, catalogue: Catalogue) -> ModelBlock | None:
    """What the `model:` block asks of sizing; None for a job without one."""
    from tercio.sizing.config_files import shape_from_config
    from tercio.sizing.devices import ModelBlock

    model = spec.model
    if model is None:
        return None
    return ModelBlock(
        shape=catalogue.model(model.name)
        if model.config is None
        else shape_from_config(json.loads(model.config), name=model.name or "model"),
        method=model.method,
        tokens=model.tokens,
        seq=model.seq,
        batch_tokens=model.batch_tokens,
        micro_batch=model.micro_batch,
    )


def _run(session: Session, path: str, *, steps: int, limit: str, queue: str | None) -> JobView:
    """Submit the job, stop it when it has marked its steps, and return it when it has ended."""
    from tercio.cli.names import has_ended
    from tercio.cli.progress import Progress
    from tercio.cli.request import Wish, build_request

    wish = Wish(
        file=path, argv=(), queue=queue, time=limit, env=(f"{STEPS_VARIABLE}={steps}",)
    )  # fmt: skip
    answer = session.client.submit(build_request(session, wish, is_plan=False))
    for warning in answer.warnings:
        session.warn(warning)
    (job_id,) = answer.ids
    pause_s, is_stopped = _POLL_FIRST_S, False
    try:
        with Progress(session, f"probing {job_id}") as progress:
            while True:
                view = session.client.job(job_id)
                progress.say(f"{view.id} {view.name} is {view.state}")
                if has_ended(view.state):
                    return view
                if view.state == "running" and not is_stopped:
                    # One more than asked for: the first says when the second began.
                    is_stopped = _marked(session, job_id) > steps
                    if is_stopped:
                        session.client.cancel(job_id, reason=f"probe: {steps} steps are enough")
                time.sleep(pause_s)
                pause_s = min(pause_s * 1.5, _POLL_LONGEST_S)
    except KeyboardInterrupt:
        with suppress(UserError):
            session.client.cancel(job_id, reason="probe: interrupted")
        raise


def _marked(session: Session, job_id: str) -> int:
    """Steps that the first task has marked by now; 0 where its site cannot say."""
    try:
        said = b"".join(session.client.execute(job_id, _COUNT_STEPS).output())
        return int(said or b"0")
    except (UserError, ValueError):
        # It has ended meanwhile, or runs where nothing can be asked: then the limit ends it.
        return 0


def _ran_on(view: JobView, spec: JobSpec, catalogue: Catalogue) -> tuple[Gpu | None, int]:
    """The part and the number of devices that the job ran on; no part for CPU devices."""
    from tercio.cli.sizing_input import card_name

    sized, told = view.spec.sized if view.spec else None, view.predicted
    counts = [len(task.devices) for task in view.tasks]
    if sized is not None and told is not None:
        part = next(row.part for row in sized.choices if row.devices == told.devices)
        return catalogue.gpus.get(part), sum(counts)
    for request in spec.groups[0].per_task.devices:
        if request.type in view.devices or len(view.devices) <= 1:
            name = card_name(request) if request.type else next(iter(view.devices), "")
            with suppress(UserError):
                return catalogue.gpu(name), sum(counts)
    return None, sum(counts)


def _foretold(
    block: ModelBlock | None, gpu: Gpu | None, gpus: int, catalogue: Catalogue
) -> Foretold | None:
    """The catalogue's own prediction, without what earlier probes said."""
    import msgspec

    from tercio.cli.sizing_input import load_calibration, load_speeds
    from tercio.sizing.probe import foretell

    if block is None or gpu is None or not gpus:
        return None
    bare = msgspec.structs.replace(catalogue, probes=())
    try:
        return foretell(bare, block, gpu, gpus, **load_speeds(), calibration=load_calibration())
    except UserError as error:
        if error.code != "never_fits":
            raise
        return None


def _ratio(measured: Measured, foretold: Foretold | None) -> float | None:
    if foretold is None or measured.tokens_per_s is None:
        return None
    return measured.tokens_per_s / foretold.tokens_per_s


def probe_text(
    job_id: str, measured: Measured, foretold: Foretold | None, gpus: int, assumed: str
) -> str:
    """What was measured beside what was predicted."""
    from tercio.cli import human
    from tercio.sizing.probe import checkpoint_every_s

    lines = [
        f"{job_id}: {measured.steps} steps, the first {measured.warm_up_steps + 1} left out",
        f"  step       {measured.step_s:.3f} s ({measured.step_low_s:.3f} to "
        f"{measured.step_high_s:.3f}), {1 / measured.step_s:.2f} steps/s",
    ]
    if measured.tokens_per_s is not None:
        lines.append(f"  speed      {measured.tokens_per_s:,.0f} tokens/s")
    if foretold is not None and (ratio := _ratio(measured, foretold)) is not None:
        low, high = foretold.tokens_per_s_low, foretold.tokens_per_s_high
        lines.append(
            f"  predicted  {foretold.tokens_per_s:,.0f} tokens/s (80 %: {low:,.0f} to {high:,.0f}) "
            f"on {foretold.gpus} x {foretold.gpu}; measured is {ratio:.2f} of it"
        )
        if not 1 / _FAR_RATIO <= ratio <= _FAR_RATIO:
            lines.append("  far off: does the job train what its model block says?")
    else:
        lines.append("  predicted  nothing: it needs a model block, and devices that hold it")
    if measured.checkpoint_s is None:
        lines.append("  checkpoint none was marked")
    else:
        size = measured.checkpoint_bytes
        told = "size not marked" if size is None else f"{size / 1e9:,.2f} GB"
        if foretold is not None and foretold.checkpoint_bytes is not None:
            told += f" (predicted {foretold.checkpoint_bytes / 1e9:,.2f} GB)"
        lines.append(f"  checkpoint {told}, written in {measured.checkpoint_s:.2f} s")
        if gpus and measured.checkpoint_s > 0:
            apart = checkpoint_every_s(gpus, measured.checkpoint_s)
            lines.append(f"             save about every {human.span(apart)} on {gpus} devices")
    if assumed:
        lines.append(f"assumed: {assumed}")
    return "\n".join(lines)


def _save(
    path: str, block: ModelBlock | None, foretold: Foretold | None, ratio: float | None
) -> str:
    """Append the ratio to the `probes` of a site file; what is there stays as it is written."""
    from tercio.cli.sizing_input import read_file, write_file

    if block is None or foretold is None or ratio is None:
        raise UserError(
            "nothing to save: there is no prediction to compare with",
            code="infeasible",
            field="save",
            hint="the job needs a model: block, and devices of the catalogue that hold it",
        )
    row = json.dumps(
        {
            "model": block.shape.name,
            "method": block.method,
            "gpu": foretold.gpu,
            "ratio": round(ratio, 4),
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
        }
    )
    body = read_file(path, "save").decode() if Path(path).exists() else ""
    write_file(path, with_probe(body, row).encode())
    return f"{path}: {block.method} of {block.shape.name} on {foretold.gpu} is {ratio:.2f} now"


def with_probe(body: str, row: str) -> str:
    """Return the text of a site file with one more probe, last in its list.

    Raises:
        UserError: its `probes` are not written as a list of one line each.
    """
    lines = body.splitlines()
    try:
        at = next(i for i, line in enumerate(lines) if line.startswith("probes:"))
    except StopIteration:
        return "\n".join([*lines, "probes:", f"  - {row}"]) + "\n"
    end = at + 1
    while end < len(lines) and (not lines[end].strip() or lines[end][:1] in " -#"):
        end += 1
    while not lines[end - 1].strip():
        end -= 1
    if lines[at].strip() != "probes:" or not lines[end - 1].lstrip().startswith("- {"):
        raise UserError(
            "the site file's probes are not a list of `- {...}` lines",
            field="save",
            hint=f"add this line yourself: - {row}",
        )
    indent = lines[end - 1][: len(lines[end - 1]) - len(lines[end - 1].lstrip())]
    return "\n".join([*lines[:end], f"{indent}- {row}", *lines[end:]]) + "\n"
