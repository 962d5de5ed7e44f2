"""Published evaluations in a shortened form: the protocols run and keep their order."""

from __future__ import annotations

import pytest
from bench import papers
from bench.published import elastic, faults, gavel, orders, queues
from bench.published.places import HETEROGENEOUS, job_list, profiles, sized_for, traces

from tercio.formats.cluster import read_cluster
from tercio.twin.policies import built_in
from tercio.twin.replay import run

needs_traces = pytest.mark.skipif(
    not traces().is_dir(), reason="the public traces are not at hand: set TERCIO_SHARED"
)


@needs_traces
def test_elastic_jobs_end_much_sooner_than_at_the_sizes_that_users_asked_for() -> None:
    jobs = job_list("sia-workloads/workloads/saturn", 1, most=40)
    sized = elastic.replay(jobs, HETEROGENEOUS, elastic.Clock()).summary
    asked = run(jobs, sized_for(HETEROGENEOUS), built_in("bestfit"), profiles=profiles()).summary
    assert sized.jobs == asked.jobs == 40
    assert sized.mean_jct_s < 0.8 * asked.mean_jct_s


@needs_traces
def test_a_row_says_mean_restarts_and_policy_time() -> None:
    row, spent = elastic.measure(elastic.SETS[4], (1,), most=15)
    assert " h (1 lists)" in row.ours
    assert spent


@needs_traces
def test_gavels_load_does_not_depend_on_which_models_were_measured() -> None:
    jobs = gavel.workload(gavel.book(), 4000).jobs
    assert len(jobs) / (jobs[-1].submit_s / 3600) == pytest.approx(gavel.PER_HOUR, rel=0.05)
    for size, part in gavel.SIZES:
        count = sum(job.tasks == size for job in jobs)
        assert count / len(jobs) == pytest.approx(part, abs=0.02)


@needs_traces
def test_types_are_chosen_for_jobs_of_fixed_size() -> None:
    assert 1.0 < gavel.mean_h(40, 0, 40) < 60.0


@needs_traces
def test_estimates_with_errors_stand_between_perfect_ones_and_none() -> None:
    trace = orders.jobs_of("103959", 400)
    nodes = read_cluster("2x8")
    wait = {
        found.name: run(trace, nodes, found).summary.mean_wait_s
        for found in (built_in("sjf"), orders.qssf(trace.jobs), built_in("fifo"))
    }
    assert wait["sjf"] < wait["qssf"] < wait["fifo"]


def test_queues_that_borrow_end_near_the_ideal() -> None:
    short = queues.shortened(queues.BASELINE, 10)._replace(cohorts=1)
    result = queues.replay(short)
    assert result.summary.jobs == 6 * 50
    assert result.summary.makespan_s < 1.1 * queues.ideal_s(short)


def test_gangs_that_ask_for_racks_all_start_at_once() -> None:
    short = queues.shortened(queues.TAS, 5)
    result = queues.replay(short)
    assert result.summary.jobs == 2 * 3 * 35
    assert result.summary.makespan_s == pytest.approx(queues.ideal_s(short))


def test_a_table_made_anew_takes_its_old_place_on_the_page() -> None:
    page = papers.placed("# old\n\n## A\n\n1\n\n## B\n\n2\n", "# new", "## A\n\n3\n")
    assert page == "# new\n\n## A\n\n3\n\n## B\n\n2\n"
    assert papers.placed(page, "# new", "## C\n\n4\n").endswith("## B\n\n2\n\n## C\n\n4\n")


@needs_traces
def test_faults_take_goodput_away() -> None:
    trace = faults.workload(120)
    row = faults.row("easy", trace)
    assert "lost" in row.ours
