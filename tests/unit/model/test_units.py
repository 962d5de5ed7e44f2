import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercio.errors import UserError
from tercio.formats.devices import exact_memory
from tercio.model import units


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90.0),
        (90, 90.0),
        (1.5, 1.5),
        ("45s", 45.0),
        ("250ms", 0.25),
        ("1h30m", 5400.0),
        ("1h 30m", 5400.0),
        ("7d", 604800.0),
        ("2w", 1209600.0),
        ("1:30:00", 5400.0),
        ("12:30", 750.0),
        ("1-00:00:00", 86400.0),
        ("0", 0.0),
    ],
)
def test_durations_read(text, seconds):
    assert units.parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "x", "5 parsecs", "-3", -3, "1h-", float("inf"), "1:2", True])
def test_bad_durations_name_field_and_fix(text):
    with pytest.raises(UserError) as raised:
        units.parse_duration_s(text, field="time.limit")
    assert raised.value.field == "time.limit"
    assert "time.limit" in raised.value.message
    assert "8h" in raised.value.hint or "seconds" in raised.value.hint


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("80GiB", 80 * 1024**3),
        ("80GB", 80 * 10**9),
        ("80G", 80 * 1024**3),
        ("1.5GiB", 3 * 1024**3 // 2),
        ("512", 512),
        (512, 512),
        ("512B", 512),
        ("4TiB", 4 * 1024**4),
        ("10 mib", 10 * 1024**2),
    ],
)
def test_memory_reads(text, size):
    assert units.parse_memory_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "80XB", "-1", -1, "1 2", "80GiBs"])
def test_bad_memory_is_refused(text):
    with pytest.raises(UserError, match="memory size"):
        units.parse_memory_bytes(text)


def test_decimal_and_binary_sizes_differ():
    assert units.parse_memory_bytes("1GB") < units.parse_memory_bytes("1GiB")


@pytest.mark.parametrize(("text", "milli"), [("1.5", 1500), (4, 4000), ("0.001", 1), (0.1, 100)])
def test_cores_read(text, milli):
    assert units.parse_cores_milli(text) == milli


@pytest.mark.parametrize("text", ["x", "-1", "0.0001", "", True, "1/0"])
def test_bad_cores_are_refused(text):
    with pytest.raises(UserError, match="number of cores"):
        units.parse_cores_milli(text)


@pytest.mark.parametrize(("text", "watts"), [("400kW", 400_000), ("700W", 700), (350, 350)])
def test_power_reads(text, watts):
    assert units.parse_power_w(text) == watts


def test_an_instant_needs_a_zone():
    assert units.parse_instant_s("2026-12-01T08:00:00Z") == 1796112000.0
    assert units.parse_instant_s("2026-12-01T09:00:00+01:00") == 1796112000.0
    assert units.parse_instant_s(12.5) == 12.5
    for text in ("2026-12-01T08:00:00", "tomorrow", "2026-13-01T00:00:00Z"):
        with pytest.raises(UserError, match="instant"):
            units.parse_instant_s(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (45, "45s"), (90, "1m30s"), (5400, "1h30m"), (604800, "7d"), (90061, "1d1h")],
)
def test_durations_print_in_two_units(seconds, text):
    assert units.format_duration(seconds) == text


@given(st.integers(0, 10**9))
def test_a_printed_duration_reads_back_within_its_last_unit(seconds):
    again = units.parse_duration_s(units.format_duration(seconds))
    assert again <= seconds
    assert seconds - again < max(60, seconds * 0.05)


@given(st.integers(0, 10**9))
def test_milli_round_trips(milli):
    assert units.parse_cores_milli(units.format_milli(milli)) == milli


@given(st.integers(0, 2**55))
def test_exact_memory_round_trips(size):
    assert units.parse_memory_bytes(exact_memory(size)) == size


@given(st.floats(0, 4e9))
def test_instants_round_trip_to_the_millisecond(at_s):
    assert abs(units.parse_instant_s(units.format_instant(at_s)) - at_s) <= 0.001


def test_memory_prints_short():
    assert units.format_memory(80 * 1024**3) == "80GiB"
    assert units.format_memory(1536 * 1024**2) == "1.5GiB"
    assert units.format_memory(10) == "10B"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (64, "64"), (0.001, "0.001"), (1e10, "10000000000"), (1e-7, "0.0000001")],
)
def test_a_number_is_printed_without_an_exponent(value, text):
    assert units.format_number(value) == text
