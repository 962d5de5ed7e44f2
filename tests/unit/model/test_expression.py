import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercio.errors import UserError
from tercio.model.expression import compile_match
from tercio.model.ids import NodeName, SiteName
from tercio.model.node import DeviceSpec, NodeSpec

NODE = NodeSpec(
    name=NodeName("n1"),
    site=SiteName("local"),
    pool="a",
    labels={"rack": "r1", "zone": ""},
    devices=(DeviceSpec(type="H100", index=0), DeviceSpec(type="L4", index=1)),
    cpus_milli=8500,
    memory_bytes=256 * 1024**3,
)


@pytest.mark.parametrize(
    "text",
    [
        "pool == 'a' && !('old' in labels)",
        'pool == "a"',
        "name == 'n1' and site == 'local'",
        "labels['rack'] == 'r1'",
        "labels['rack'] in ['r1', 'r2']",
        "labels['none'] != 'x'",
        "labels['none'] not in ['x']",
        "'zone' in labels",
        "labels['zone'] == ''",
        "device == 'H100'",
        "device == 'L4'",
        "device != 'A100'",
        "'H100' in device",
        "device in ['A100', 'H100']",
        "devices == 2",
        "devices >= 2 && devices < 3",
        "cpus > 8",
        "cpus == 8.5",
        "memory >= 256GiB",
        "memory > 256GB",
        "devices in [1, 2]",
        "true",
        "!false",
        "not not true",
        "pool == 'b' || pool == 'a'",
        "pool == 'b' && pool == 'b' || true",
        "(pool == 'a') == true",
        "((((name == 'n1'))))",
    ],
)
def test_true_of_the_node(text):
    assert compile_match(text).matches(NODE)


@pytest.mark.parametrize(
    "text",
    [
        "pool != 'a'",
        "labels['none'] == labels['other']",
        "labels['none'] == ''",
        "labels['none'] in ['x']",
        "device == 'A100'",
        "device != 'H100'",
        "device not in ['H100']",
        "'n1' in labels",
        "devices < 2",
        "memory > 1TiB",
        "true && false",
        "!(pool == 'a' || false)",
    ],
)
def test_false_of_the_node(text):
    assert not compile_match(text).matches(NODE)


@pytest.mark.parametrize(
    ("text", "column", "fix"),
    [
        ("pool = 'a'", 6, "write =="),
        ("pool == 'a' & true", 13, "&&"),
        ("pol == 'a'", 1, "did you mean 'pool'?"),
        ("pool", 1, "compare it"),
        ("pool == 3", 6, "one kind"),
        ("pool > 'a'", 6, "one kind"),
        ("'a' in pool", 5, "labels"),
        ("(pool == 'a'", 13, "write ')'"),
        ("pool == 'a' pool", 13, "&&"),
        ("pool == 'a", 9, "close the text"),
        ("labels[rack] == 'r1'", 8, "labels['rack']"),
        ("labels == 'r1'", 8, "one kind"),
        ("pool in []", 9, "['a', 'b']"),
        ("pool in ['a', 3]", 9, "texts only"),
        ("pool in [pool]", 10, "['a', 'b']"),
        ("", 1, "write a value"),
        ("devices == 12abc", 12, "quotes"),
        ("import('os')", 1, "names are"),
        ("pool.upper == 'A'", 5, "quotes"),
        ("!" * 10 + "pool", 11, "compare it"),
        ("(" * 60 + "true", 34, "levels"),
    ],
)
def test_errors_name_column_and_fix(text, column, fix):
    with pytest.raises(UserError) as raised:
        compile_match(text, field="nodes.match")
    assert f"column {column}:" in raised.value.message
    assert fix in raised.value.hint
    assert raised.value.field == "nodes.match"


def test_length_is_bounded():
    with pytest.raises(UserError, match="characters"):
        compile_match("true && " * 1000 + "true")


def test_the_matcher_keeps_its_text():
    assert compile_match("true").text == "true"


PIECES = st.sampled_from(
    ["pool", "labels", "device", "devices", "cpus", "memory", "'a'", '"b"', "3", "2GiB", "==", "!=",
     "<", ">=", "in", "not", "!", "&&", "||", "(", ")", "[", "]", ",", "true", "name", "x", "="]
)  # fmt: skip


def compiled(text):
    """Return the matcher, or None when the text is refused as it should be."""
    try:
        return compile_match(text)
    except UserError as error:
        if not error.hint:
            raise
    return None


@given(st.lists(PIECES, max_size=12).map(" ".join))
def test_any_text_is_refused_cleanly_or_answers(text):
    matcher = compiled(text)
    if matcher is None:
        return
    assert isinstance(matcher.matches(NODE), bool)
    assert isinstance(matcher.matches(NodeSpec(name=NodeName("x"), site=SiteName("s"))), bool)


@given(st.text(max_size=60))
def test_noise_is_refused_cleanly(text):
    compiled(text)
