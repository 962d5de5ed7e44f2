"""One poll of a node: devices by the child process, ports, and kernel lines that mean something."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

import tercio
from tercio.collect.job_files import JobFiles
from tercio.collect.kernel_log import KernelLog, read_boot_id
from tercio.collect.ports import ROOT, read_ports
from tercio.collect.power_limits import PowerLimits
from tercio.collect.sampling import Sampler
from tercio.health.parse import FindingParser
from tercio.health.table import FaultTable
from tercio.model.power import CapOrders
from tercio.model.readings import DeviceTelemetry, KernelLine, NodeReading


class Watcher:
    """Reads this machine again and again. Blocks; not for several threads at once."""

    def __init__(
        self,
        *,
        table: FaultTable,
        sampler: Sampler,
        log: KernelLog,
        ports: Path = ROOT,
        limits: PowerLimits | None = None,
        job_files: JobFiles | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._table = table
        self._sampler = sampler
        self._log = log
        self._ports = ports
        self._limits = limits or PowerLimits()
        self._job_files = job_files
        self._job_files_note = ""
        self._devices: tuple[DeviceTelemetry, ...] = ()
        self._clock = clock
        self._boot_id = read_boot_id()
        self._limits_note = ""

    def poll(self) -> NodeReading:
        """Return what the machine says now."""
        self._sampler.limits_w = self._limits.wanted_w
        sample = self._sampler.sample()
        self._limits.note(sample.devices)
        self._devices = sample.devices or self._devices
        notes = dict(sample.notes)
        lines = tuple(line for line in self._log.read() if self._means_something(line))
        if self._limits_note:
            notes["power_limits"] = self._limits_note
        if self._job_files_note:
            notes["job_files"] = self._job_files_note
        if self._log.note:
            notes["kernel_log"] = self._log.note
        return NodeReading(
            at_s=self._clock(),
            boot_id=self._boot_id,
            driver=sample.driver,
            devices=sample.devices,
            ports=read_ports(self._ports),
            lines=lines,
            notes=notes,
            calls=sample.calls,
            version=tercio.__version__,
            caps_revision=self._limits.revision,
        )

    def keep(self, caps: CapOrders | None) -> None:
        """Take the power limits to set from the next poll on; None takes back what was set."""
        try:
            self._limits.take(caps)
            self._limits_note = ""
        except OSError as failure:
            # Nothing is set that could not be taken back after a crash.
            self._limits_note = f"not set: {failure}"

    def tell_jobs(self, jobs: Mapping[str, Sequence[str]]) -> None:
        """Take which jobs hold the devices, by UUID, for those who read it from files."""
        if self._job_files is None:
            return
        try:
            self._job_files.tell(self._devices, jobs)
            self._job_files_note = ""
        except OSError as failure:
            self._job_files_note = str(failure)

    def delivered(self) -> None:
        """Note that everything polled so far has arrived: a restart goes on from here."""
        self._log.save()

    def close(self) -> None:
        """End the child process."""
        self._sampler.close()

    def _means_something(self, line: KernelLine) -> bool:
        # A parser of its own for each line: what one line means must not hang on another. Lines
        # of the driver go along whole, since some of its records span several.
        return "NVRM" in line.text or FindingParser(self._table).parse(line.text) is not None


def only_lines(reading: NodeReading) -> NodeReading:
    """Return a reading as it is kept while it cannot be delivered: old values are no news."""
    return msgspec.structs.replace(reading, devices=(), ports=(), calls=0)
