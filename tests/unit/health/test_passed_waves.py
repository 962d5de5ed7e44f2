"""Faults of a wave that has passed blame no node."""

from tercio.health.finding import Action, Severity
from tercio.health.history import Fault, software_faults

FLEET = dict.fromkeys((f"n{at}" for at in range(20)), "a")


def fault(node: int, at_s: float, severity: Severity = Severity.ERROR) -> Fault:
    return Fault(id=f"{node}/{at_s:g}", node=f"n{node}", at_s=at_s, fault_class="xid", code="31",
                 severity=severity, action=Action.RESTART_APP)  # fmt: skip


def test_three_nodes_within_the_window_are_software_for_good():
    wave = [fault(at, 600.0 * at) for at in range(3)]
    later = [fault(7, 90_000.0), fault(7, 91_000.0)]
    assert software_faults([*wave, *later], FLEET) == {each.id for each in wave}


def test_two_nodes_or_a_longer_span_are_not():
    assert not software_faults([fault(0, 0.0), fault(1, 1.0), fault(1, 2.0)], FLEET)
    assert not software_faults([fault(at, 2000.0 * at) for at in range(5)], FLEET)


def test_another_driver_is_another_wave():
    drivers = {**FLEET, "n1": "b"}
    assert not software_faults([fault(at, 1.0) for at in range(3)], drivers)


def test_a_fatal_fault_asks_for_its_repair():
    wave = [fault(at, 1.0) for at in range(3)] + [fault(4, 1.0, Severity.FATAL)]
    assert software_faults(wave, FLEET) == {"0/1", "1/1", "2/1"}
