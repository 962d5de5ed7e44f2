"""From the log of a dying GPU to the node that comes back: every part on one thread."""

from tercio.health.book import HealthBook
from tercio.health.classify import classify
from tercio.health.finding import Action
from tercio.health.history import fault_of
from tercio.health.machine import NodeState
from tercio.health.policy import HealthPolicy, Mode, Repairs
from tercio.health.record import Order
from tercio.health.table import FaultTable

LOG = """\
[74785.660366] pcieport 0000:00:02.0: AER: Corrected error received: id=0010
[74889.542031] pcieport 0000:00:02.0: AER: Uncorrected (Fatal) error received: id=0010
[74889.601000] NVRM: GPU at PCI:0000:01:00: GPU-12345678-1234-1234-1234-123456789abc
[74889.602000] NVRM: Xid (PCI:0000:01:00): 79, pid=77, name=python, GPU has fallen off the bus.
[74889.603000] NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.
[74889.700000] NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)
[74890.100000] NVRM: Xid (PCI:0000:01:00): 45, pid=77, name=python, Ch 00000008
"""  # noqa: E501


def test_a_gpu_dies_and_its_node_comes_back(table: FaultTable) -> None:
    said = classify(LOG, table)
    warning, loss = said.incidents
    assert (warning.root_code, warning.action) == ("aer_corrected", Action.OBSERVE)
    assert (loss.root_code, loss.action) == ("aer_fatal", Action.REBOOT_NODE)
    assert loss.target.pci == "0000:01:00.0"
    serial = said.uuid_by_pci["0000:01:00.0"]

    book = HealthBook(HealthPolicy(mode=Mode.ACT, repairs=Repairs.COMMAND))
    for name in ("n1", "n2", "n3"):
        book.note_node(name, now_s=0, driver="570")
    book.note_node("n2", now_s=0, driver="570", jobs=("job-1",))
    for incident in said.incidents:
        book.note_fault(
            fault_of(
                incident,
                id=f"n2-{incident.id}",
                node="n2",
                at_s=100 + incident.id,
                serial=serial,
                job="job-1",
            )
        )
    [quarantine] = book.decide(102)
    assert (quarantine.node, quarantine.order) == ("n2", Order.QUARANTINE)
    assert quarantine.evidence == ("n2-1",)
    assert book.health("n2").unfit_serials == (serial,)

    book.note_node("n2", now_s=110, driver="570")
    [repair] = book.decide(110)
    assert (repair.order, repair.action) == (Order.REPAIR, Action.REBOOT_NODE)
    book.note_repair_ended("n2", succeeded=True, now_s=400)
    assert book.health("n2").unfit_serials == ()
    book.decide(400 + 86_400)
    assert book.health("n2").state is NodeState.OK
