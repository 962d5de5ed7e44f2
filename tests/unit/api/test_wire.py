"""Bodies, queries and cursors: what is refused, and what the refusal says."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercio.api.bodies import BatchBody, JobsQuery, NoQuery, SubmitBody, TokenBody
from tercio.api.wire import (
    decode_body,
    decode_query,
    make_cursor,
    read_cursor,
    read_instant_s,
)
from tercio.errors import UserError


def refusal(raw: bytes, kind: type) -> UserError:
    with pytest.raises(UserError) as caught:
        decode_body(raw, kind)
    assert caught.value.code == "invalid"
    return caught.value


def test_unknown_field_names_the_nearest_known_one():
    error = refusal(b'{"fil": "run: x"}', SubmitBody)
    assert error.field == "fil"
    assert error.message == "unknown field 'fil'"
    assert error.hint == "did you mean 'file'?"


def test_unknown_field_inside_a_list_names_its_place():
    error = refusal(b'{"jobs": [{"file": "x"}, {"sorce": "y"}]}', BatchBody)
    assert error.field == "jobs[1].sorce"
    assert error.hint == "did you mean 'source'?"


def test_wrong_type_names_field_and_expected_type():
    error = refusal(b'{"user": 5}', TokenBody)
    assert error.field == "user"
    assert error.message == "user: expected `str`, got `int`"


def test_missing_field_is_named():
    error = refusal(b"", TokenBody)
    assert "missing required field `user`" in error.message


def test_a_name_ends_where_its_text_ends():
    assert refusal(rb'{"user": "root\n", "role": "user"}', TokenBody).field == "user"


@pytest.mark.parametrize("raw", [b"{", b"[1", b"\xff", b'"\xff"', b"nul", b"[" * 100_000])
def test_bytes_that_are_no_json_are_refused(raw):
    error = refusal(raw, SubmitBody)
    assert error.hint is not None


@given(st.binary(max_size=200))
def test_any_bytes_decode_or_are_refused(raw):
    with contextlib.suppress(UserError):
        assert isinstance(decode_body(raw, SubmitBody), SubmitBody)


def test_numbers_and_truths_in_queries_are_read_from_text():
    query = decode_query({"limit": "20", "all": "true"}, JobsQuery)
    assert (query.limit, query.all) == (20, True)


@pytest.mark.parametrize(
    ("pairs", "field"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "1001"}, "limit"),
        ({"limit": "many"}, "limit"),
        ({"all": "maybe"}, "all"),
        ({"lmit": "5"}, "lmit"),
    ],
)
def test_bad_parameters_are_refused_with_their_name(pairs, field):
    with pytest.raises(UserError) as caught:
        decode_query(pairs, JobsQuery)
    assert caught.value.field == field
    assert caught.value.hint


def test_a_route_without_parameters_says_so():
    with pytest.raises(UserError) as caught:
        decode_query({"x": "1"}, NoQuery)
    assert caught.value.hint == "this request takes none"


@given(st.text(min_size=1, max_size=60))
def test_a_cursor_comes_back_as_its_key(key):
    assert read_cursor("jobs", make_cursor("jobs", key)) == key


@given(st.text(max_size=60))
def test_any_other_text_is_no_cursor(text):
    with contextlib.suppress(UserError):
        found = read_cursor("jobs", text)
        assert read_cursor("jobs", make_cursor("jobs", found)) == found


def test_a_cursor_of_another_list_is_refused():
    with pytest.raises(UserError):
        read_cursor("jobs", make_cursor("nodes", "n1"))


@pytest.mark.parametrize("text", ["1700000000.5", "2023-11-14T22:13:20.5Z"])
def test_an_instant_is_seconds_or_rfc_3339(text):
    assert read_instant_s(text, field="since") == 1_700_000_000.5
    assert read_instant_s(None, field="since") is None


@pytest.mark.parametrize("text", ["", "nan", "inf", "-1", "1e300", "yesterday", "2023-11-14T22:13"])
def test_other_instants_are_refused(text):
    with pytest.raises(UserError) as caught:
        read_instant_s(text, field="since")
    assert caught.value.field == "since"
