import pytest

from tercio.errors import UserError
from tercio.formats.cluster import read_cluster
from tercio.model.node import Links

GB = 10**9


def test_the_short_form():
    nodes = read_cluster("8x4")
    assert [node.name for node in nodes] == [f"n{number}" for number in range(1, 9)]
    assert [device.index for device in nodes[0].devices] == [0, 1, 2, 3]
    first = nodes[0].devices[0]
    assert (first.type, first.vendor, first.card_bytes) == ("H100", "nvidia", 80 * GB)
    assert nodes[0].pool == "H100"
    assert nodes[0].cpus_milli == 4 * 8000
    assert nodes[0].memory_bytes == 4 * 64 * 1024**3
    assert read_cluster("2x0")[0].devices == ()


def test_every_key():
    text = """
nodes:
  - name: n[08-10,12]-a
    devices: A100-40GB:4
    cpus: 96
    memory: 1TiB
    slots: 6
    links: pairs
    labels: {rack: r1, block: 7}
    pool: big
    site: hpc
  - {count: 2, devices: CPU:2}
"""
    nodes = read_cluster(text)
    assert [n.name for n in nodes] == ["n08-a", "n09-a", "n10-a", "n12-a", "n5", "n6"]
    big, small = nodes[0], nodes[-1]
    assert (big.cpus_milli, big.memory_bytes, big.slots) == (96_000, 1024**4, 6)
    assert (big.pool, big.site, big.links) == ("big", "hpc", Links.PAIRS)
    assert big.labels == {"rack": "r1", "block": "7"}
    assert [d.island for d in big.devices] == [0, 0, 1, 1]
    assert big.devices[0].card_bytes == 40 * GB
    assert (small.devices[0].type, small.devices[0].vendor) == ("CPU", "cpu")
    assert (small.site, small.pool) == ("sim", "CPU")


@pytest.mark.parametrize(("links", "islands"), [("nvswitch", [0, 0, 0]), ("none", [0, 1, 2])])
def test_links_make_islands(links, islands):
    node = read_cluster(f"nodes: [{{name: n1, devices: H100:3, links: {links}}}]")[0]
    assert [device.island for device in node.devices] == islands


@pytest.mark.parametrize(
    ("text", "field", "fix"),
    [
        ("0x8", "cluster", "8x8"),
        ("8x99999", "", "such as nodes"),
        ("", None, "8x8"),
        ("{}", "nodes", "nodes:"),
        ("nodes: []", "nodes", "nodes:"),
        ("nodes: [{}]", "nodes[0].count", "count: 8"),
        ("nodes: [{name: n1, count: 2}]", "nodes[0]", "name: n[1-8]"),
        ("nodes: [{name: n1}, {name: n1}]", "nodes[1]", "own name"),
        ("nodes: [{name: 'n[3-1]'}]", "nodes[0].name", "1-3"),
        ("nodes: [{name: 'n[1-]'}]", "nodes[0].name", "n[1-8]"),
        ("nodes: [{name: 'n 1'}]", "nodes[0].name", "n[1-8]"),
        ("nodes: [{name: 'n[1-999999999]'}]", "nodes[0].name", "200000"),
        ("nodes: [{count: 2, devices: 8}]", "nodes[0].devices", "H100:8"),
        ("nodes: [{count: 2, devices: 'H100:1..3'}]", "nodes[0].devices", "H100:8"),
        ("nodes: [{count: 2, devices: 'H100:0.5'}]", "nodes[0].devices", "H100:8"),
        ("nodes: [{count: 2, devices: 'H10:8'}]", "nodes[0].devices", "H100"),
        ("nodes: [{count: 2, devices: 'H100:9999'}]", "nodes[0].devices", "1024"),
        ("nodes: [{count: 2, gpus: 8}]", "nodes[0].gpus", "devices"),
        ("nodes: [{count: 0}]", "nodes[0].count", "from 1"),
        ("nodes: [{count: 1, links: ring}]", "nodes[0].links", "pairs"),
        ("nodes: [{count: 1, slots: 0}]", "nodes[0].slots", "from 1"),
        ("nodes: [{count: 1, labels: {'a b': c}}]", "nodes[0].labels.a b", "letters"),
        ("nodes: [{count: 1, memory: 1}]", "nodes[0].memory", "1GiB"),
        ("nodes: [{count: 150000}, {count: 150000}]", "nodes[1]", "200000"),
    ],
)
def test_bad_clusters_name_field_and_fix(text, field, fix):
    with pytest.raises(UserError) as raised:
        read_cluster(text)
    if field:
        assert raised.value.field == field
    assert fix in raised.value.hint
