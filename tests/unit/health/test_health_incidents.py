"""A burst is one incident, its root is kept, and its action follows the best informed line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercio.health.classify import classify
from tercio.health.finding import Action, Incident, Severity
from tercio.health.table import FaultTable


def xid(at_s: float, code: int, tail: str = "x", pci: str = "0000:0a:00") -> str:
    return f"[{at_s:12.6f}] NVRM: Xid (PCI:{pci}): {code}, {tail}"


def incidents(table: FaultTable, *lines: str) -> tuple[Incident, ...]:
    return classify("\n".join(lines), table).incidents


def test_45_follows_the_62_before_it_which_stays_the_root(table: FaultTable) -> None:
    got = classify("\n".join([xid(14370.688, 62), xid(14370.6886, 45)]), table)
    [incident] = got.incidents
    assert (incident.root_code, incident.root_line, incident.action) == ("62", 1, Action.RESET_GPU)
    assert got.findings[1].cause_code == "62"


def test_45_alone_retries_the_job(table: FaultTable) -> None:
    [incident] = incidents(table, xid(5, 45))
    assert (incident.action, incident.severity) == (Action.RESTART_APP, Severity.NOTE)


def test_109_outranks_the_13_that_came_first(table: FaultTable) -> None:
    [incident] = incidents(table, xid(10, 13), xid(10.1, 13), xid(15, 109))
    assert (incident.root_code, incident.findings) == ("109", (0, 1, 2))


def test_the_hardest_action_wins_among_equally_severe_findings(table: FaultTable) -> None:
    [incident] = incidents(table, xid(10, 119), xid(12, 79))
    assert (incident.root_code, incident.action) == ("119", Action.REBOOT_NODE)


def test_switch_fault_74_and_45_are_one_incident(table: FaultTable) -> None:
    [incident] = incidents(
        table,
        "[10.0] nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Fatal, Link 28 timeout (First)",
        "[10.0] nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Severity 1 Engine instance 28",
        xid(10.2, 74, pci="0000:4f:00"),
        xid(10.3, 45, pci="0000:4f:00"),
    )
    assert (incident.root_code, incident.action) == ("24007", Action.REBOOT_NODE)


def test_broken_port_and_lost_gpu_are_one_incident_on_the_gpu(table: FaultTable) -> None:
    [incident] = incidents(
        table,
        "[9.0] pcieport 0000:00:02.0: AER: Uncorrected (Fatal) error received: id=0010",
        xid(9.5, 79, pci="0000:4f:00"),
    )
    assert incident.target.pci == "0000:4f:00.0"
    assert incident.action is Action.REBOOT_NODE


def test_text_of_a_lost_gpu_is_counted_once_after_its_79(table: FaultTable) -> None:
    got = classify(
        xid(9, 79, pci="0000:91:00")
        + "\n[9.1] NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.",
        table,
    )
    assert [f.continuation for f in got.findings] == [False, True]
    assert len(got.incidents) == 1


def test_continuation_without_its_event_opens_no_incident(table: FaultTable) -> None:
    got = classify(
        "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Severity 0 Engine instance 44", table
    )
    assert got.incidents == ()
    assert got.findings[0].incident is None


def test_oom_records_of_one_kill_are_one_incident(table: FaultTable) -> None:
    got = classify(
        "[5.0] python invoked oom-killer: gfp_mask=0x14000c0, order=0\n"
        "[5.1] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=python,pid=59,uid=0\n"
        "[5.2] Memory cgroup out of memory: Killed process 59 (python) total-vm:1kB\n"
        "[5.2] Memory cgroup out of memory: Killed process 60 (python) total-vm:1kB\n",
        table,
    )
    [incident] = got.incidents
    assert (incident.root_code, incident.action) == ("oom_invoked", Action.RESTART_APP)


@pytest.mark.parametrize(
    ("companion", "action"),
    [
        (63, Action.DRAIN_AND_RESET),
        (95, Action.DRAIN_AND_RESET),
        (94, Action.RESET_GPU_WHEN_IDLE),
        (45, Action.RESET_GPU),
    ],
)
def test_companion_of_48_says_how_far_the_damage_goes(
    table: FaultTable, companion: int, action: Action
) -> None:
    [incident] = incidents(table, xid(1, 48), xid(1.2, companion))
    assert (incident.root_code, incident.action) == ("48", action)


def test_the_drivers_own_word_overrides_the_table(table: FaultTable) -> None:
    told = "GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)"
    [incident] = incidents(table, xid(1, 79), xid(1.2, 154, told))
    assert (incident.root_code, incident.action) == ("79", Action.DRAIN_AND_RESET)


def test_a_cut_154_overrides_nothing(table: FaultTable) -> None:
    [incident] = incidents(table, xid(1, 79), xid(1.2, 154, "GPU recovery action changed from 0x"))
    assert incident.action is Action.REBOOT_NODE


def test_a_cleared_fault_asks_for_nothing_and_ends_its_incident(table: FaultTable) -> None:
    cleared = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
    first, second = incidents(table, xid(1, 119), xid(9, 154, cleared), xid(10, 13))
    assert (first.cleared, first.action) == (True, Action.NONE)
    assert second.root_code == "13"


def test_silence_and_reboot_end_a_burst(table: FaultTable) -> None:
    assert len(incidents(table, xid(1, 13), xid(14, 13), xid(40, 13))) == 2
    assert len(incidents(table, xid(1, 31), xid(170, 31))) == 1
    assert len(incidents(table, xid(9000, 79), xid(30, 79))) == 2


def test_ranks_of_one_job_are_one_incident(table: FaultTable) -> None:
    lines = [
        f"[rank{r}]:[E x] [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL("
        for r in range(8)
    ]
    [incident] = incidents(table, *lines)
    assert len(incident.findings) == 8


def test_devices_do_not_mix(table: FaultTable) -> None:
    got = incidents(table, xid(1, 79, pci="0000:0a:00"), xid(1, 79, pci="0000:0b:00"))
    assert [i.target.pci for i in got] == ["0000:0a:00.0", "0000:0b:00.0"]


@given(
    codes=st.lists(
        st.sampled_from([13, 31, 43, 45, 48, 62, 63, 74, 79, 94, 95, 109, 119]), min_size=1
    ),
    gaps=st.lists(st.floats(0, 14), min_size=40, max_size=40),
)
def test_any_burst_on_one_gpu_is_one_incident_with_its_worst_code(
    table: FaultTable, codes: list[int], gaps: list[float]
) -> None:
    at_s, lines = 100.0, []
    for code, gap in zip(codes, gaps, strict=False):
        lines.append(xid(at_s, code))
        at_s += gap
    got = classify("\n".join(lines), table)
    [incident] = got.incidents
    assert incident.findings == tuple(range(len(got.findings)))
    assert incident.severity is max((f.severity for f in got.findings), key=lambda s: s.rank)
