"""`devices: auto`: what sizing chooses among the devices of a cluster, and what it learns."""

from __future__ import annotations

import msgspec
import pytest

from tercio.assets import load_table
from tercio.core.records import Job, Task, taken_choice
from tercio.core.sized import SizingTables, site_ratio, size_job
from tercio.errors import UserError
from tercio.formats.native import read_job
from tercio.model.ids import JobId, NodeName, QueuePath
from tercio.model.job import JobSpec, JobState
from tercio.model.node import Node, NodeSpec
from tercio.model.placement import TaskPlacement
from tercio.model.resources import DeviceShare
from tercio.sizing.packaged import (
    build_calibration,
    build_catalogue,
    build_collective_fits,
    build_gemm_table,
)
from tercio.testing.factories import make_node


@pytest.fixture(scope="module")
def tables() -> SizingTables:
    return SizingTables(
        catalogue=build_catalogue(load_table),
        calibration=build_calibration(load_table),
        kernels=build_gemm_table(load_table),
        fits=build_collective_fits(load_table),
    )


def nodes_of(*specs: NodeSpec) -> dict[NodeName, Node]:
    return {spec.name: Node(spec=spec) for spec in specs}


H100 = nodes_of(*(make_node(f"h{n}") for n in range(2)))
L4 = nodes_of(make_node("l1", type="L4", devices=4))


def asked(model: str, extra: str = "") -> JobSpec:
    text = f"per_task: {{devices: auto}}\nmodel: {model}\n{extra}run: x"
    return read_job(text, source="tune.yaml").specs[0]


LORA = asked("{name: llama-3-8b, method: lora, tokens: 100M}")
FULL = asked("{name: llama-3-70b, method: full, tokens: 100M}")


def devices(spec: JobSpec) -> list[tuple[str | None, int]]:
    return [(row.type, row.count) for row in spec.groups[0].per_task.devices]


def test_the_cheapest_that_fits_comes_first_and_others_may_stand_in(tables):
    spec = size_job(LORA, {**L4, **H100}, (), tables)
    assert devices(spec) == [("H100", 1), ("L4", 1)]
    assert not spec.groups[0].per_task.is_auto
    assert spec.sized is not None
    first, second = spec.sized.choices
    assert spec.time.expected_s == first.expected_s
    assert first.low_s < first.expected_s < first.high_s
    assert spec.speed["H100"] == 1.0
    assert spec.speed["L4"] == pytest.approx(first.expected_s / second.expected_s, abs=1e-4)
    assert spec.sized.catalogue == tables.catalogue.date


def test_a_gang_spans_nodes_when_one_does_not_hold_it(tables):
    big = nodes_of(*(make_node(f"h{n}") for n in range(16)))
    spec = size_job(FULL, big, (), tables)
    assert spec.groups[0].tasks > 1
    assert devices(spec)[0] == ("H100", 8)
    assert spec.groups[0].tasks * 8 <= 128


def test_a_card_size_is_asked_for_only_where_the_type_has_several(tables):
    large = make_node("a40", type="A100")
    cards = tuple(msgspec.structs.replace(d, card_bytes=40 * 10**9) for d in large.devices)
    small = msgspec.structs.replace(large, devices=cards)
    both = nodes_of(make_node("a80", type="A100"), small)
    requests = size_job(LORA, both, (), tables).groups[0].per_task.devices
    assert {row.card_bytes for row in requests} == {40 * 10**9, 80 * 10**9}
    (only,) = size_job(LORA, nodes_of(make_node("a80", type="A100")), (), tables).groups
    assert [row.card_bytes for row in only.per_task.devices] == [None]


@pytest.mark.parametrize(
    ("spec", "nodes", "words"),
    [
        (LORA, nodes_of(make_node("c", type="CPU")), "it has CPU"),
        (LORA, {}, "it has none"),
        (FULL, L4, "fits on no count|needs more than"),
        (asked("{name: nope-7b}"), H100, "unknown model 'nope-7b'"),
        (asked("{config: {hidden_size: 64}}"), H100, "."),
    ],
)
def test_what_cannot_be_sized_is_refused(tables, spec, nodes, words):
    with pytest.raises(UserError, match=words) as caught:
        size_job(spec, nodes, (), tables)
    assert caught.value.hint


def test_own_words_stand(tables):
    spec = asked("{name: llama-3-8b, tokens: 100M}", "time: {expected: 3h}\nspeed: {H100: 2}\n")
    sized = size_job(spec, H100, (), tables)
    assert (sized.time.expected_s, sized.speed) == (10800.0, {"H100": 2.0})
    plain = read_job("run: x", source="a").specs[0]
    assert size_job(plain, H100, (), tables) is plain


def finished(spec: JobSpec, number: int, ratio: float, **fields: object) -> Job:
    assert spec.sized is not None
    run_s = spec.sized.choices[0].expected_s / spec.sized.site_ratio * ratio
    held = TaskPlacement(task=0, node=NodeName("h0"), devices=(DeviceShare(index=0),))
    kept: dict[str, object] = {
        "state": JobState.SUCCEEDED, "attempt": 1, "started_s": 100.0, "ended_s": 100.0 + run_s,
        "tasks": [Task(placement=held)], **fields,
    }  # fmt: skip
    return Job(
        id=JobId(f"job-{number}"), spec=spec, queue=QueuePath("q"), user="u", tenant="t",
        submitted_s=0, sequence=number, **kept,
    )  # type: ignore[arg-type]  # fmt: skip


def test_finished_jobs_correct_the_next_prediction(tables):
    first = size_job(LORA, H100, (), tables)
    done = [finished(first, number, 1.5) for number in range(6)]
    again = size_job(LORA, H100, done, tables)
    assert again.sized is not None
    # Six jobs at 1.5 and a prior of two at 1.
    assert again.sized.site_ratio == pytest.approx(1.5 ** (6 / 8))
    assert again.sized.site_jobs == 6
    assert again.time.expected_s == pytest.approx(first.time.expected_s * 1.5 ** (6 / 8))
    # A correction is not corrected twice.
    more = [*done, *(finished(again, 10 + number, 1.5) for number in range(6))]
    assert site_ratio(more, H100, LORA.model, tables.catalogue)[0] == pytest.approx(
        1.5 ** (12 / 14)
    )


def test_only_whole_runs_of_the_same_method_teach(tables):
    spec = size_job(LORA, H100, (), tables)
    full = size_job(asked("{name: llama-3-8b, method: full, tokens: 1M}"), H100, (), tables)
    rest = [
        finished(spec, 1, 3.0, state=JobState.FAILED),
        finished(spec, 2, 3.0, attempt=2),
        finished(spec, 3, 3.0, ended_s=None),
        finished(full, 4, 3.0),
    ]
    assert site_ratio(rest, H100, LORA.model, tables.catalogue) == (1.0, 0)
    other = size_job(asked("{name: llama-3-70b, method: qlora, tokens: 1M}"), H100, (), tables)
    assert other.model is not None
    assert site_ratio([finished(spec, 5, 2.0)], H100, other.model, tables.catalogue) == (1.0, 0)


def test_the_alternative_that_was_taken_is_known_by_its_devices(tables):
    spec = size_job(LORA, {**L4, **H100}, (), tables)
    job = finished(spec, 1, 1.0)
    assert taken_choice(job, H100).type == "H100"
    assert taken_choice(job, {}) is None
    job.tasks[0].placement = TaskPlacement(
        task=0, node=NodeName("l1"), devices=(DeviceShare(index=0),)
    )
    assert taken_choice(job, L4).type == "L4"
