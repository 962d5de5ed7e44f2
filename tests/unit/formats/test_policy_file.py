import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercio.errors import UserError
from tercio.formats.policy import read_policy, read_policy_object, write_policy
from tercio.model.limits import HOUR_MS, DeviceTime, Limits, OwnerLimit
from tercio.model.queue import (
    AcrossQueues,
    DefaultShare,
    Flexible,
    PlacementPolicy,
    Policy,
    PowerBudget,
    Predict,
    PreemptionPolicy,
    QueueOrder,
    QueueSpec,
    WithinQueue,
    walk_queues,
)

CONTRACT = """\
default_queue: research/nlp
half_life: 7d
reservation_depth: 1
max_overtake: 1h
topology: [island, node, rack, block, zone, site]
preemption: {within_queue: lower_priority, across_queues: fair, grace: 120s, min_runtime: 10m,
             max_evictions_per_job_per_hour: 2}
placement: {pack: fragmentation, defragment: off}
default_share: {cpus_per_device: 8, memory_per_device: 64GiB}
queues:
  research:
    guarantee: {H100: 64}
    limit: {H100: 128}
    weight: 2
    lend_limit: {H100: 32}
    borrow_limit: null
    order: backfill
    preemptible: true
    submit: [group:nlp, user:ana]
    user_limit: {devices: 32, running_jobs: 20}
    children: {nlp: {}, vision: {}}
budgets: [{domain: row-a, power: 400kW}]
"""


def test_the_contracts_example_reads_in_full():
    research = QueueSpec(
        guarantee={"H100": 64_000},
        limit={"H100": 128_000},
        weight=2,
        lend_limit={"H100": 32_000},
        submit=("group:nlp", "user:ana"),
        user_limit={"devices": 32_000, "running_jobs": 20},
        children={"nlp": QueueSpec(), "vision": QueueSpec()},
    )
    assert read_policy(CONTRACT) == Policy(
        default_queue="research/nlp",
        queues={"research": research},
        budgets=(PowerBudget(domain="row-a", power_w=400_000),),
    )


def test_an_empty_file_is_the_default_policy():
    assert read_policy("") == Policy()
    assert read_policy_object({}) == Policy()


def test_off_and_on_are_words_not_truth_values():
    text = "preemption: {across_queues: off, within_queue: off}\nplacement: {defragment: on}"
    policy = read_policy(text)
    assert policy.preemption.across_queues is AcrossQueues.OFF
    assert policy.preemption.within_queue is WithinQueue.OFF
    assert policy.placement.defragment


@pytest.mark.parametrize("word", ["off", "price", "carbon"])
def test_what_flexible_jobs_are_ordered_by(word: str):
    policy = read_policy(f"flexible: {word}")
    assert policy.flexible.value == word
    assert read_policy(write_policy(policy)) == policy


def test_guarantees_by_shape():
    queue = read_policy("queues: {a: {guarantee: {h100: 8, shape: {nodes: 8, island: 2}}}}").queues[
        "a"
    ]
    assert queue.guarantee_shape == {"node": 8, "island": 2}
    assert queue.guarantee == {"H100": 8000}


def test_depth_all_and_no_eviction_bound():
    policy = read_policy(
        "reservation_depth: all\npreemption: {max_evictions_per_job_per_hour: all}\nhalf_life: 0"
    )
    assert policy.reservation_depth is None
    assert policy.preemption.max_evictions_per_job_per_hour is None
    assert policy.half_life_s == 0.0


def test_one_queue_is_the_default_queue():
    assert read_policy("queues: {only: {}}").default_queue == "only"


TREE = (
    "queues: {default: {}, a: {guarantee: %s, children: {b: {guarantee: %s}, c: {guarantee: %s}}}}"
)


@pytest.mark.parametrize(
    ("parent", "first", "second"),
    [
        ("{H100: 8}", "{H100: 4}", "{H100: 4}"),
        ("{devices: 8}", "{H100: 4}", "{A100: 4}"),
        ("{H100: 4, devices: 4}", "{H100: 4}", "{A100: 4}"),
        ("{H100: 8}", "{devices: 4}", "{H100: 4}"),
        ("{cpus: 8, memory: 2GiB}", "{cpus: 8}", "{memory: 2GiB}"),
        ("{shape: {nodes: 2}}", "{shape: {nodes: 1}}", "{shape: {nodes: 1}}"),
    ],
)
def test_children_within_their_parent(parent, first, second):
    read_policy(TREE % (parent, first, second))


@pytest.mark.parametrize(
    ("parent", "first", "second", "fix"),
    [
        ("{H100: 8}", "{H100: 4}", "{H100: 5}", "H100: 9"),
        ("{}", "{H100: 1}", "{}", "H100: 1"),
        ("{devices: 8}", "{H100: 4}", "{A100: 5}", "devices: 9"),
        ("{H100: 8}", "{devices: 5}", "{H100: 4}", "devices: 5"),
        ("{H100: 8}", "{A100: 1}", "{}", "A100: 1"),
        ("{memory: 1GiB}", "{memory: 1GiB}", "{memory: 1GiB}", "memory: 2GiB"),
        ("{shape: {nodes: 1}}", "{shape: {nodes: 1}}", "{shape: {nodes: 1}}", "shape: {node: 2}"),
    ],
)
def test_children_above_their_parent_are_refused(parent, first, second, fix):
    with pytest.raises(UserError, match="children of 'a'") as raised:
        read_policy(TREE % (parent, first, second))
    assert fix in raised.value.hint
    assert raised.value.field == "queues.a.children"


def test_capacity_bounds_the_top_level():
    text = "queues: {default: {guarantee: {H100: 8}}, b: {guarantee: {devices: 4}}}"
    read_policy(text)
    read_policy(text, capacity={"H100": 12_000})
    for capacity in ({"H100": 7000}, {"H100": 11_000}, {"A100": 64_000}):
        with pytest.raises(UserError, match="the cluster has") as raised:
            read_policy(text, capacity=capacity)
        assert "overcommit" in raised.value.hint
    policy = read_policy(f"{text}\novercommit: true", capacity={"H100": 1000})
    assert policy.overcommit
    assert read_policy(text, capacity={"H100": 1000}, overcommit=True) == policy


EIGHT_NODES = {"node": ({"H100": 8000},) * 8}


def test_whole_domains_are_compared_with_those_there_are():
    text = "queues:\n  default: {}\n  a: {guarantee: {shape: {nodes: 9}}}\n"
    capacity = {"H100": 64_000, "devices": 64_000}
    read_policy(text.replace("9", "8"), capacity=capacity, domains=EIGHT_NODES)
    read_policy(text, capacity=capacity)  # nothing to compare with
    with pytest.raises(UserError, match="9 whole nodes, but the cluster has 8") as raised:
        read_policy(text, capacity=capacity, domains=EIGHT_NODES)
    assert raised.value.field == "queues.a.guarantee"
    assert ":3:" in str(raised.value)
    assert "--overcommit" in raised.value.hint
    assert read_policy(text, capacity=capacity, domains=EIGHT_NODES, overcommit=True)


def test_amounts_and_whole_domains_come_out_of_the_same_devices():
    text = "queues: {a: {guarantee: {shape: {nodes: 5}}}, b: {guarantee: {devices: %d}}}"
    text += "\ndefault_queue: a"
    capacity = {"H100": 64_000, "devices": 64_000}
    read_policy(text % 24, capacity=capacity, domains=EIGHT_NODES)
    with pytest.raises(UserError, match="guarantees of 65 devices, but the cluster has 64"):
        read_policy(text % 25, capacity=capacity, domains=EIGHT_NODES)


@pytest.mark.parametrize(
    ("text", "field", "fix"),
    [
        ("queues: {a: {weight: -1}}", "queues.a.weight", "from 0"),
        ("queues: {a: {weight: 1.5}}", "queues.a.weight", "whole"),
        ("queues: {a: {}, c: {}}\ndefault_queue: b", "default_queue", "queues: a, c"),
        ("queues: {a: {}, c: {}}", "default_queue", "queues: a, c"),
        ("queues: {a: {guarantee: {H100: 9}, limit: {H100: 5}}}", "queues.a.guarantee", "lower"),
        ("queues: {a: {guarantee: {H100: 9}, limit: {devices: 5}}}", "queues.a.guarantee", "lower"),
        ("queues: {a: {guarantee: {H10: 9}}}", "queues.a.guarantee.H10", "H100"),
        ("queues: {a: {guarantee: {H100: -9}}}", "queues.a.guarantee.H100", "64"),
        ("queues: {a: {guarantee: {H100: [1]}}}", "queues.a.guarantee.H100", "64"),
        ("queues: {a: {guarantee: 8}}", "queues.a.guarantee", "H100"),
        ("queues: {a: {limit: {gpus: 3}}}", "queues.a.limit.gpus", "devices"),
        ("queues: {a: {limit: {memory: 64}}}", "queues.a.limit.memory", "64GiB"),
        ("queues: {a: {limit: {running_jobs: 3}}}", "queues.a.limit.running_jobs", "write"),
        ("queues: {a: {guarantee: {shape: {rak: 3}}}}", "queues.a.guarantee.shape.rak", "rack"),
        ("queues: {a: {gaurantee: {}}}", "queues.a.gaurantee", "guarantee"),
        ("queues: {a: {order: fifo}}", "queues.a.order", "strict"),
        ("queues: {a: {submit: [ana]}}", "queues.a.submit[0]", "user:ana"),
        ("queues: {a/b: {}}", "queues.a/b", "children"),
        ("queues: {'a b': {}}", "queues.a b", "letters"),
        ("queues: {}", "queues", "queue names"),
        ("queues: []", "queues", "queue names"),
        ("topology: [rack]", "topology", "node"),
        ("topology: [node, node]", "topology[1]", "remove"),
        ("topology: [node, island]", "topology", "island before"),
        ("topology: [site, node]", "topology", "site last"),
        ("preemption: {across_queues: fare}", "preemption.across_queues", "'fair'"),
        ("preemption: {grace: soon}", "preemption.grace", "45s"),
        ("placement: {pack: tight}", "placement.pack", "bestfit"),
        ("placement: {defragment: 1}", "placement.defragment", "off, on"),
        ("reservation_depth: many", "reservation_depth", "whole number"),
        ("half_life: -1d", "half_life", "7d"),
        ("default_share: {cpus_per_device: 0}", "default_share.cpus_per_device", "0.001"),
        ("budgets: [{domain: a}]", "budgets[0].power", "400kW"),
        ("budgets: [{domain: a, power: 4 horses}]", "budgets[0].power", "400kW"),
        ("budgets: [{domain: a, power: 1}, {domain: a, power: 2}]", "budgets[1]", "one budget"),
        ("quues: {}", "quues", "queues"),
        ("overcommit: 1", "overcommit", "true"),
        ("[1]", None, "mapping"),
    ],
)
def test_bad_policies_name_field_and_fix(text, field, fix):
    with pytest.raises(UserError) as raised:
        read_policy(text, source="policy.yaml")
    assert raised.value.field == field
    assert fix in raised.value.hint
    assert raised.value.message.startswith("policy.yaml:1: ") or "\n" in text


def test_two_documents_are_refused():
    with pytest.raises(UserError, match="documents"):
        read_policy("half_life: 1d\n---\nhalf_life: 2d")


RESOURCES = st.sampled_from(["H100", "A100", "devices", "cpus", "memory"])
AMOUNTS = st.dictionaries(RESOURCES, st.integers(0, 10**9), max_size=3).map(
    lambda amounts: {
        name: amount + (1 << 20) * (name == "memory") for name, amount in amounts.items()
    }
)
NAMES = st.from_regex(r"[a-z][a-z0-9_.-]{0,8}[a-z0-9]", fullmatch=True) | st.sampled_from(
    ["on", "off", "yes", "null", "1e3", "012", "true"]
)
WHO = st.lists(st.sampled_from(["user:ana", "group:nlp", "user:on"]), unique=True).map(tuple)


@st.composite
def queue_specs(draw, depth=0):
    children = {}
    if depth < 2 and draw(st.booleans()):
        children = draw(st.dictionaries(NAMES, queue_specs(depth=depth + 1), max_size=2))
    # Guarantees only where no tree rule can forbid them: at leaves below nothing.
    guarantee = draw(AMOUNTS) if depth == 0 else {}
    return QueueSpec(
        guarantee=guarantee,
        guarantee_shape=draw(st.sampled_from([{}, {"node": 3}])) if depth == 0 else {},
        lend_limit=draw(AMOUNTS),
        borrow_limit=draw(AMOUNTS),
        limit={} if guarantee else draw(AMOUNTS),
        weight=draw(st.integers(0, 10**6)),
        order=draw(st.sampled_from(QueueOrder)),
        preemptible=draw(st.booleans()),
        submit=draw(WHO),
        admin=draw(WHO),
        user_limit=draw(AMOUNTS) | draw(st.sampled_from([{}, {"running_jobs": 5}])),
        children=children,
    )


@st.composite
def limits(draw):
    budgets = st.builds(DeviceTime, amount_ms=st.integers(0, 10**12), days=st.integers(1, 366))
    limit = st.builds(OwnerLimit, amounts=AMOUNTS, device_time=st.none() | budgets)
    names = st.sampled_from(["ana", "on", "012", "a@b.c"])
    return Limits(
        per_user=draw(limit),
        per_tenant=draw(limit),
        users=draw(st.dictionaries(names, limit, max_size=2)),
        tenants=draw(st.dictionaries(names, limit, max_size=2)),
    )


@st.composite
def policies(draw):
    queues = draw(st.dictionaries(NAMES, queue_specs(), min_size=1, max_size=3))
    seconds = st.integers(0, 10**7).map(float) | st.sampled_from([0.5, 90.25])
    return Policy(
        default_queue=draw(st.sampled_from(list(walk_queues(Policy(queues=queues))))),
        half_life_s=draw(seconds),
        reservation_depth=draw(st.none() | st.integers(0, 1000)),
        max_overtake_s=draw(seconds),
        fence_after_s=draw(seconds),
        topology=draw(st.sampled_from([("node",), ("island", "node", "pod", "site")])),
        preemption=PreemptionPolicy(
            within_queue=draw(st.sampled_from(WithinQueue)),
            across_queues=draw(st.sampled_from(AcrossQueues)),
            grace_s=draw(seconds),
            min_runtime_s=draw(seconds),
            max_evictions_per_job_per_hour=draw(st.none() | st.integers(0, 3600)),
        ),
        placement=PlacementPolicy(pack="spread", defragment=draw(st.booleans())),
        default_share=DefaultShare(
            cpus_milli_per_device=draw(st.integers(1, 10**6)),
            memory_bytes_per_device=draw(st.integers(1 << 20, 2**50)),
        ),
        queues=queues,
        budgets=draw(st.sampled_from([(), (PowerBudget(domain="row-a", power_w=1500),)])),
        limits=draw(limits()),
        overcommit=draw(st.booleans()),
        predict=draw(st.sampled_from(Predict)),
        flexible=draw(st.sampled_from(Flexible)),
    )


@given(policies())
def test_policies_round_trip(policy):
    assert read_policy(write_policy(policy)) == policy


def test_the_written_file_is_for_people():
    text = write_policy(read_policy(CONTRACT))
    for part in ("half_life: 7d", "H100: 64", "memory_per_device: 64GiB", "power: 400kW"):
        assert part in text
    assert "milli" not in text


LIMITS = """queues: {research: {}}
limits:
  per_user: {devices: 16, running_jobs: 20, device_hours: {amount: 500.5, per: 7d}}
  users: {ana: {H100: 32}, root: {}}
  tenants: {acme: {device_hours: {amount: 10000, per: 30d}}}
"""


def test_limits_of_users_and_tenants():
    found = read_policy(LIMITS).limits
    assert found == Limits(
        per_user=OwnerLimit(
            amounts={"devices": 16_000, "running_jobs": 20},
            device_time=DeviceTime(amount_ms=1001 * HOUR_MS // 2, days=7),
        ),
        users={"ana": OwnerLimit(amounts={"H100": 32_000}), "root": OwnerLimit()},
        tenants={
            "acme": OwnerLimit(device_time=DeviceTime(amount_ms=10_000 * HOUR_MS, days=30)),
        },
    )


@pytest.mark.parametrize(
    ("right", "wrong", "message", "hint"),
    [
        ("7d", "90m", "device_hours.per: '90m' is no number of whole days", "7d"),
        ("7d", "9000d", "device_hours.per: '9000d' is too long", "366d"),
        ("amount: 500.5", "amount: -3", "device_hours.amount: '-3' is out of bounds", "from 0"),
        ("amount: 500.5, ", "", "device_hours.amount: is missing", "{amount: 1000, per: 7d}"),
        ("amount: 500.5", "hours: 5", "device_hours.hours: unknown key", "amount, per"),
        ("{amount: 500.5, per: 7d}", "500", "'500' is not an amount with a period", "per: 7d"),
        ("per_user", "user", "limits.user: unknown key", "per_user"),
        ("running_jobs", "jobs", "'jobs' is no resource", "running_jobs"),
        ("{H100: 32}", "7", "limits.users.ana: '7' is not a mapping", "devices: 16"),
        ("ana:", '"a na":', "'a na' is no name", "no spaces"),
    ],
)
def test_bad_limits_are_refused_with_the_line(right: str, wrong: str, message: str, hint: str):
    text = LIMITS.replace(right, wrong, 1)
    line = LIMITS[: LIMITS.index(right)].count("\n") + 1
    with pytest.raises(UserError) as caught:
        read_policy(text, source="policy.yaml")
    assert str(caught.value).startswith(f"policy.yaml:{line}: limits.")
    assert message in str(caught.value)
    assert hint in (caught.value.hint or "")
