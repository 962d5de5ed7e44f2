from hypothesis import given
from hypothesis import strategies as st

from tercio.model import ids


def test_ids_are_short_prefixed_and_stable():
    assert ids.job_id(1) == "job-00001"
    assert ids.job_id(1_000_000) == "job-0ygj0"
    assert ids.reservation_id(33) == "res-00011"
    assert ids.task_key(ids.job_id(1), 2, 0) == "job-00001/2/0"


@given(st.integers(1, 2**40), st.integers(1, 2**40))
def test_ids_are_unique_and_sort_by_number_up_to_their_width(first, second):
    assert (ids.job_id(first) == ids.job_id(second)) == (first == second)
    if max(first, second) < 32**5:
        assert (ids.job_id(first) < ids.job_id(second)) == (first < second)


@given(st.integers(1, 2**40), st.integers(0, 10**6))
def test_elements_know_their_array(number, index):
    parent = ids.job_id(number)
    element = ids.element_id(parent, index)
    assert ids.array_parent(element) == parent
    assert ids.array_parent(parent) is None
    assert ids.job_number(parent) == number
    for job in (parent, element):
        if number < ids.ELEMENT_NUMBERS and index < ids.ELEMENT_NUMBERS:
            assert ids.numbered_job(str(ids.job_number(job))) == job
    assert ids.numbered_job(f"{number}_{index}") == element or number >= ids.ELEMENT_NUMBERS
