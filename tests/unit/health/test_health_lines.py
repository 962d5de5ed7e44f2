"""Every known log line gives the code and the action it should, and harmless ones give nothing."""

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercio.assets import load_table
from tercio.health.classify import Classifier, classify
from tercio.health.finding import Action, Classification, Finding, Severity
from tercio.health.parse import driver_branch_of
from tercio.health.table import FaultTable, parse_table

TABLE = parse_table(load_table("health/faults.csv"), load_table("health/patterns.toml"))
CASES = [
    tuple(row.split("\t", 1))
    for row in (Path(__file__).parent / "lines.tsv").read_text().splitlines()
]
LINES = [line for _, line in CASES]


def told(classification: Classification) -> str:
    """Codes and actions of a classification as `code:action`, `-` for none."""
    return ",".join(f"{f.code}:{verdict(f)}" for f in classification.findings) or "-"


def verdict(finding: Finding) -> str:
    return "continuation" if finding.continuation else finding.action.value


@pytest.mark.parametrize(("expected", "line"), CASES, ids=range(len(CASES)))
def test_line(expected: str, line: str) -> None:
    assert told(classify(line, TABLE)) == expected


def test_public_lines_give_code_action_class_severity_and_device(shared_log_lines: Path) -> None:
    with shared_log_lines.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) >= 50
    wrong = []
    for row in rows:
        got = [described(f) for f in classify(row["line"], TABLE).findings]
        if got != expected_of(row):
            wrong.append((row["line"], got, expected_of(row)))
    assert not wrong


def described(f: Finding) -> tuple[str, ...]:
    return (f.code, verdict(f), str(f.clears), f.fault_class, f.severity.value)


def expected_of(row: dict[str, str]) -> list[tuple[str, ...]]:
    if not row["expected_code"]:
        return []
    action = row["expected_action"]
    word = "continuation" if action.startswith("(continuation") else action.split(" ")[0]
    clears = str("(clears)" in action)
    return [(row["expected_code"], word, clears, row["class"], row["severity"])]


def test_public_lines_name_the_device(shared_log_lines: Path) -> None:
    with shared_log_lines.open(newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["class"] in ("xid", "amd") and r["device"]]
    for row in rows:
        [finding] = classify(row["line"], TABLE).findings
        assert finding.target.pci == f"{row['device']}.0".replace(".0.0", ".0")


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("NVRM: Xid (PCI:0000:dc:00): 45, Ch 1 caused by previous Xid 149", "149"),
        ("NVRM: Xid (PCI:0000:dc:00): 45, Ch 1", None),
        ("NVRM: Xid (PCI:0000:dc:00): 171, pid=1, x", "48"),
    ],
)
def test_cause_that_the_line_names(line: str, cause: str | None) -> None:
    [finding] = classify(line, TABLE).findings
    assert (finding.action, finding.cause_code) == (Action.FOLLOW_OTHER_XID, cause)


def test_target_keeps_mig_link_pid_rank_and_port() -> None:
    mig, link, rank, port = classify(
        "NVRM: Xid (PCI:00000001:4F:1C GPU-I:05): 94, pid='77', name=x, Contained\n"
        "NVRM: Xid (PCI:0000:4f:00): 74, pid=9, NVLink: fatal error detected on link 14(0x2, 0x0)\n"
        "[rank12]:[E x] [Rank 12] Watchdog caught collective operation timeout: WorkNCCL(\n"
        "mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link INIT\n",
        TABLE,
    ).findings
    assert (mig.target.pci, mig.target.gi, mig.target.pid) == ("0001:4f:1c.0", 5, 77)
    assert (link.target.link, link.target.pid) == (14, 9)
    assert rank.target.rank == 12
    assert (port.target.pci, port.target.port) == ("0000:ab:00.0", "mlx5_5:1")


@pytest.mark.parametrize(
    ("driver", "words", "action"),
    [
        # Unit id 0x0C2 of the old layout is 66 in the new one, which no rule has.
        ("570.124.06", "0x0409a0c2 0x00000008", Action.OBSERVE),
        ("580.65.06", "0x0409a0c2 0x00000002", Action.RESET_GPU),
        # 4 is RLW_REMAP only since 575.
        ("575", "0x00000004 0x00000001", Action.USE_RECOVERY_ACTION),
        ("r570", "0x00000004 0x00000001", Action.RESET_GPU),
    ],
)
def test_nvlink5_unit_layout_follows_the_driver(driver: str, words: str, action: Action) -> None:
    line = f"NVRM: Xid (PCI:0018:01:00): 145, RLW_REMAP Fatal XC0 i0 Link 13 ({words} 0x0)"
    [finding] = classify(line, TABLE, driver_branch=driver_branch_of(driver)).findings
    assert finding.action is action


@pytest.mark.parametrize(
    ("registers", "action"),
    [
        ("(0x800001, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)", Action.OBSERVE),
        ("(0x800001, 0x0, 0x4, 0x0, 0x0, 0x0, 0x0)", Action.RESET_GPU),
        ("(0x0, 0x0, 0x0, 0x0, 0x900000, 0x0, 0x0)", Action.OBSERVE),
        ("(0x0, 0x0, 0x0, 0x0, 0x940000, 0x0, 0x0)", Action.RESET_GPU),
        ("(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)", Action.RESET_GPU),
        ("(0x20, 0x0, 0x0, 0x0)", Action.RESET_GPU),
        ("(0x0, 0x0, 0x0, 0x0)", Action.RESET_GPU),
        ("", Action.RESET_GPU),
    ],
)
def test_registers_of_74(registers: str, action: Action) -> None:
    line = f"NVRM: Xid (PCI:0000:c1:00): 74, NVLink: fatal error detected on link 1{registers}"
    [finding] = classify(line, TABLE).findings
    assert finding.action is action


@pytest.mark.parametrize(
    ("flags", "action"),
    [
        ("RST: No, D-RST: No", Action.RESTART_APP),
        ("RST: No, D-RST: Yes", Action.RESET_GPU_WHEN_IDLE),
        ("RST: Yes, D-RST: No", Action.RESET_GPU),
    ],
)
def test_reset_flags_of_94(flags: str, action: Action) -> None:
    [finding] = classify(f"NVRM: Xid (PCI:0000:c1:00): 94, Contained. {flags}", TABLE).findings
    assert finding.action is action


@pytest.mark.parametrize(
    ("prefix", "at_s"),
    [
        ("", None),
        ("[14370.688139] ", None),
        ("[   12.345678] [ T1946] ", None),
        ("<4>[   12.345678] ", None),
        ("[Sun Feb 23 16:24:18 2025] ", 1740327858.0),
        ("Feb 23 16:24:18 n7 kernel: [ 12.5] ", None),
        ("2025-02-23T17:24:18.250+01:00 n7 kernel: ", 1740327858.25),
        ("2025-02-23T16:24:18Z n7 kernel: [12.5] ", 1740327858.0),
        ("2025-02-23 16:24:18,250 INFO ", 1740327858.25),
        ("[Feb 23 2025 16:24:18] [ERROR] [tid 1803] ", 1740327858.0),
        ("4,1234,5678901234,-;", None),
        ("\x1b[31m[ 12.5]\x1b[0m ", None),
        ("kernel: ", None),
    ],
)
def test_prefix_costs_no_finding_and_gives_the_time_it_has(prefix: str, at_s: float | None) -> None:
    line = f"{prefix}NVRM: Xid (PCI:0000:4f:00): 79, pid=1, GPU has fallen off the bus."
    [finding] = classify(line, TABLE).findings
    assert (finding.code, finding.at_s) == ("79", at_s)


def test_envelopes_of_journald_and_container_runtimes() -> None:
    journald, container = classify(
        '{"__REALTIME_TIMESTAMP":"1740327858250000",'
        '"MESSAGE":"NVRM: Xid (PCI:0000:4f:00): 79, x"}\n'
        '{"log":"NVRM: Xid (PCI:0000:5f:00): 48, x\\n","time":"2025-02-23T16:24:18.25Z"}\n'
        '{"broken": \n',
        TABLE,
    ).findings
    assert (journald.code, journald.at_s) == ("79", 1740327858.25)
    assert (container.code, container.at_s) == ("48", 1740327858.25)


def test_identities_in_the_log_are_kept_without_a_finding() -> None:
    uuid = "GPU-12345678-1234-1234-1234-123456789abc"
    got = classify(f"NVRM: GPU at PCI:0000:66:00: {uuid}", TABLE)
    assert (got.findings, got.uuid_by_pci) == ((), {"0000:66:00.0": uuid})


def test_three_record_loss_is_one_finding_with_all_its_lines() -> None:
    got = classify(
        "[ 1.1] NVRM: The NVIDIA GPU 0000:b3:00.0\n"
        "[ 1.1] usb 1-4: new device\n"
        "[ 1.1] NVRM: (PCI ID: 10de:26b5) installed in this system has\n"
        "[ 1.1] NVRM: fallen off the bus and is not responding to commands.\n",
        TABLE,
    )
    [finding] = got.findings
    assert (finding.line, finding.line_end, len(finding.evidence)) == (1, 4, 3)


def test_records_of_a_lost_gpu_around_its_79_count_once() -> None:
    got = classify(
        "NVRM: The NVIDIA GPU 0000:b3:00.0\n"
        "NVRM: Xid (PCI:0000:b3:00): 79, pid=1, GPU has fallen off the bus.\n"
        "NVRM: fallen off the bus and is not responding to commands.\n",
        TABLE,
    )
    assert [(f.line, f.line_end, f.continuation) for f in got.findings] == [
        (2, 2, False),
        (1, 3, True),
    ]
    assert len(got.incidents) == 1


def test_unsupported_gpu_message_is_no_loss() -> None:
    got = classify(
        "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:1b80)\n"
        "NVRM: installed in this system is not supported by the driver.\n",
        TABLE,
    )
    assert got.findings == ()


def test_unknown_code_asks_for_a_person_and_nothing_else() -> None:
    known = {key[1] for key in TABLE.rows if key[0] == "xid"}
    for code in range(0, 1200, 7):
        if str(code) in known:
            continue
        [finding] = classify(f"NVRM: Xid (PCI:0000:4f:00): {code}, x", TABLE).findings
        assert finding.action is Action.CONTACT_SUPPORT
        assert finding.severity is Severity.WARNING


@given(st.text())
def test_no_text_raises(text: str) -> None:
    classify(text, TABLE)


@given(st.sampled_from(LINES), st.integers(0, 300), st.integers(0, 300))
def test_no_damaged_line_raises(line: str, start: int, length: int) -> None:
    classify(line[:start] + line[start + length :], TABLE)


@given(st.lists(st.sampled_from(LINES), max_size=12), st.data())
def test_chunks_change_nothing(lines: list[str], data: st.DataObject) -> None:
    text = "\n".join(lines)
    whole = classify(text, TABLE)
    classifier = Classifier(TABLE)
    while text:
        size = data.draw(st.integers(1, len(text)))
        classifier.feed(text[:size])
        text = text[size:]
    assert classifier.finish() == whole


def test_table_is_dated_and_every_row_has_a_source(table: FaultTable) -> None:
    assert table.date >= "2026-01-01"
    assert [key for key, row in table.rows.items() if not row.source] == []
    assert len(table.nvlink_rules) == 52
