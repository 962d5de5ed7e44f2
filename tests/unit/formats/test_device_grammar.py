import pytest
from hypothesis import given
from hypothesis import strategies as st
from job_texts import refusal

from tercio.errors import UserError
from tercio.formats.cards import CARDS, GB, canonical_type, card_bytes, find_card
from tercio.formats.devices import format_devices, parse_device, parse_devices
from tercio.model.resources import NO_DEVICE, DeviceRequest

GIB = 1024**3


def one(**fields):
    return (DeviceRequest(**fields),)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("H100:8", one(type="H100", count=8)),
        ("8xH100", one(type="H100", count=8)),
        ("8 x H100", one(type="H100", count=8)),
        ("h100:8", one(type="H100", count=8)),
        ("H100", one(type="H100", count=1)),
        ("8", one(count=8)),
        (8, one(count=8)),
        ("gpu:8", one(count=8)),
        ("gpu:h100:8", one(type="H100", count=8)),
        ("CPU:2", one(type="CPU", count=2)),
        ("cpu:2", one(type="CPU", count=2)),
        ("none", (NO_DEVICE,)),
        ("A100-80GB:8", one(type="A100", count=8, card_bytes=80 * GB)),
        ("A100:80GB:8", one(type="A100", count=8, card_bytes=80 * GB)),
        ("a100-80gb-sxm:8", one(type="A100", count=8, card_bytes=80 * GB)),
        ("A100-80GB..:8", one(type="A100", count=8, card_bytes=80 * GB, card_at_least=True)),
        ("80GB..:8", one(count=8, card_bytes=80 * GB, card_at_least=True)),
        ("24GB", one(count=1, card_bytes=24 * GB)),
        ("nvidia:8", one(vendor="nvidia", count=8)),
        ("amd:1..8", one(vendor="amd", count=1, count_max=8)),
        ("nvidia:H100:8", one(type="H100", count=8)),
        ("H100:4..8", one(type="H100", count=4, count_max=8)),
        ("H100:4..4", one(type="H100", count=4)),
        ("1..4xL4", one(type="L4", count=1, count_max=4)),
        ("H100:0.5", one(type="H100", share_milli=500)),
        (0.5, one(share_milli=500)),
        ("H100:2.0", one(type="H100", count=2)),
        ("H100@20GiB", one(type="H100", share_memory_bytes=20 * GIB)),
        ("gpu@20GiB", one(share_memory_bytes=20 * GIB)),
        ("H100/1g.10gb:2", one(type="H100", count=2, mig_profile="1g.10gb")),
        ("A100-40GB/1g.5gb", one(type="A100", count=1, card_bytes=40 * GB, mig_profile="1g.5gb")),
        ("1 | CPU:1", one(count=1) + one(type="CPU", count=1)),
        (
            "H100:8 | A100-80GB:8",
            one(type="H100", count=8) + one(type="A100", count=8, card_bytes=80 * GB),
        ),
        ("H100:1|none", (*one(type="H100", count=1), NO_DEVICE)),
    ],
)
def test_the_grammar(text, expected):
    assert parse_devices(text) == expected


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("H10:8", "H100"),
        ("H100:0", "none"),
        ("0", "none"),
        ("H100:-1", "whole count"),
        ("A100:1.5", "share"),
        ("H100:0.0001", "share"),
        ("H100:8..4", "4..8"),
        ("H100:2000000", "100000"),
        ("", "TYPE:N"),
        ("|", "TYPE:N"),
        ("H100:8 |", "TYPE:N"),
        ("H100:", "TYPE:N"),
        ("H100::8", "TYPE:N"),
        ("amd:H100:2", "nvidia:H100"),
        ("H100:nvidia:2", "nvidia:H100:8"),
        ("H100:8:8", "TYPE:N"),
        ("H100:A100", "|"),
        ("A100-40GB:80GB:1", "A100-80GB:8"),
        ("0GB:1", "80GB"),
        ("H100@0GiB", "1MiB"),
        ("H100@x", "TYPE@20GiB"),
        ("H100:2@20GiB", "alone"),
        ("H100/foo:1", "1g.10gb"),
        ("H100/1g.10gb:0.5", "whole count"),
        ("H100/1g.10gb:1..3", "one count"),
        ("none | H100:1", "last"),
        ("H100:1 | H100:1", "remove"),
        (" | ".join(f"H100:{n}" for n in range(1, 20)), "16"),
        (True, "TYPE:N"),
        ("snorlax:4", "H100"),
    ],
)
def test_a_bad_request_names_field_text_and_fix(text, fix):
    with pytest.raises(UserError) as raised:
        parse_devices(text, field="per_task.devices")
    assert raised.value.field == "per_task.devices"
    assert "per_task.devices" in raised.value.message
    assert fix in raised.value.hint


def test_types_of_the_cluster_are_known_too():
    assert parse_devices("fpga9:2", types=("FPGA9",)) == one(type="FPGA9", count=2)
    with pytest.raises(UserError, match="FPGA9"):
        parse_devices("FPGA9:2")


def test_a_single_device_has_no_alternatives():
    assert parse_device("H100:8").count == 8
    with pytest.raises(UserError, match="alternatives"):
        parse_device("H100:8 | A100:8")


TYPES = st.one_of(st.none(), st.sampled_from([card.type for card in CARDS]))
SIZES = st.one_of(st.none(), st.integers(1, 9999).map(lambda size: size * GB))


@st.composite
def requests(draw):
    kind = draw(st.sampled_from(["none", "count", "range", "share", "memory", "mig"]))
    if kind == "none":
        return NO_DEVICE
    card = draw(SIZES)
    fields = {"type": draw(TYPES), "card_bytes": card}
    fields["card_at_least"] = card is not None and draw(st.booleans())
    if fields["type"] is None:
        fields["vendor"] = draw(st.sampled_from([None, "nvidia", "amd", "intel"]))
    low = draw(st.integers(1, 1000))
    match kind:
        case "count":
            fields["count"] = low
        case "range":
            fields |= {"count": low, "count_max": draw(st.integers(low + 1, 2000))}
        case "share":
            fields["share_milli"] = draw(st.integers(1, 999))
        case "memory":
            fields["share_memory_bytes"] = draw(st.integers(1024**2, 1024**4))
        case "mig":
            fields |= {"count": low, "mig_profile": draw(st.sampled_from(["1g.5gb", "3g.40gb"]))}
    return DeviceRequest(**fields)


@given(st.lists(requests(), min_size=1, max_size=4, unique=True))
def test_requests_round_trip(alternatives):
    alternatives.sort(key=lambda request: request.is_none)
    wanted = tuple(alternatives)
    assert parse_devices(format_devices(wanted)) == wanted


@given(st.text(alphabet="H100AaNGgBb:|.x@/-8 ", max_size=20))
def test_noise_is_refused_cleanly_or_round_trips(text):
    error = refusal(parse_devices, text, field="f")
    if error is not None:
        assert error.hint
        assert error.field == "f"
        return
    found = parse_devices(text)
    assert parse_devices(format_devices(found)) == found


@pytest.mark.parametrize(
    ("name", "type", "size_gb"),
    [
        ("NVIDIA H100 80GB HBM3", "H100", 80),
        ("NVIDIA H100 PCIe", "H100", 80),
        ("NVIDIA H100 NVL", "H100", 80),
        ("NVIDIA H200", "H200", 141),
        ("NVIDIA H20-3e", "H20", 96),
        ("NVIDIA A100-SXM4-40GB", "A100", 40),
        ("NVIDIA A100-PCIE-40GB", "A100", 40),
        ("NVIDIA A100 80GB PCIe", "A100", 80),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "A100", 80),
        ("NVIDIA A10", "A10", 24),
        ("NVIDIA A10G", "A10G", 24),
        ("NVIDIA L4", "L4", 24),
        ("NVIDIA L40S", "L40S", 48),
        ("Tesla T4", "T4", 16),
        ("Tesla V100-SXM2-16GB", "V100", 16),
        ("Tesla V100-PCIE-32GB", "V100", 32),
        ("Tesla P100-PCIE-16GB", "P100", 16),
        ("NVIDIA GeForce RTX 4090", "RTX4090", 24),
        ("NVIDIA GeForce RTX 3080 Ti", "RTX3080Ti", 12),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "RTX4070Ti", 12),
        ("NVIDIA RTX A6000", "A6000", 48),
        ("NVIDIA RTX 6000 Ada Generation", "RTX6000Ada", 48),
        ("Quadro RTX 6000", "RTX6000", 24),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTXPRO6000", 96),
        ("NVIDIA B200", "B200", 180),
        ("NVIDIA GB200", "GB200", 186),
        ("NVIDIA GH200 480GB", "GH200", 96),
        ("AMD Instinct MI300X", "MI300X", 192),
        ("AMD Instinct MI300X OAM", "MI300X", 192),
        ("AMD Instinct MI250X / MI250", "MI250X", 128),
        ("Intel Gaudi 2", "Gaudi2", 96),
        ("rtx-4090", "RTX4090", 24),
        ("h100_sxm", "H100", 80),
    ],
)
def test_marketing_names_become_canonical(name, type, size_gb):
    assert canonical_type(name) == type
    assert card_bytes(name) == size_gb * GB


@pytest.mark.parametrize(
    ("name", "mebibytes", "size_gb"),
    [
        ("NVIDIA H100 80GB HBM3", 81559, 80),
        ("NVIDIA H100 NVL", 95830, 94),
        ("NVIDIA A100-SXM4-40GB", 40960, 40),
        ("Tesla T4", 15360, 16),
        ("NVIDIA L4", 23034, 24),
        ("NVIDIA H200", 143771, 141),
        ("NVIDIA GH200 480GB", 97871, 96),
        ("NVIDIA B200", 183359, 180),
        ("NVIDIA Thing 9", 65536, 64),
    ],
)
def test_usable_memory_decides_the_marketing_size(name, mebibytes, size_gb):
    assert card_bytes(name, mebibytes * 1024**2) == size_gb * GB


def test_every_card_is_found_by_all_its_names_and_no_name_is_shared():
    seen = {}
    for card in CARDS:
        for name in dict.fromkeys((card.type.upper(), *card.names)):
            assert seen.setdefault(name, card.type) == card.type
            assert find_card(name) == card
        assert canonical_type(card.type) == card.type
        assert canonical_type(card.type.lower()) == card.type


def test_an_unknown_card_keeps_a_name_that_can_be_requested():
    name = canonical_type("NVIDIA Foo 9000 XL")
    assert name == "FOO9000XL"
    assert parse_devices(f"{name}:2", types=(name,)) == one(type=name, count=2)
    assert card_bytes("NVIDIA Foo 9000 XL") == 0
    assert canonical_type("") == "unknown"
