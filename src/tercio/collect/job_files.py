"""Which jobs run on which GPU, as dcgm-exporter reads it (`--hpc-job-mapping-dir`).

One file per GPU, named by its index in the vendor's library, with one job a line. A MIG instance
in use has its own, named by the GPU and the number of the GPU instance (`3.1`, as in `GPU_I_ID`),
beside that of its card: newer exporters label an instance by its own file alone, older ones know
only those of cards. An exporter that is there already labels its metrics `hpc_job` by them. The
directory is for these files alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tercio.model.readings import DeviceTelemetry

_NAME: Final = re.compile(r"\d+(\.\d+)?")


class JobFiles:
    """Keeps the files of one directory; writes only what changed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._told: dict[str, str] | None = None

    def tell(self, devices: Sequence[DeviceTelemetry], jobs: Mapping[str, Sequence[str]]) -> None:
        """Write which jobs hold the devices; a free one has no file.

        Args:
            devices: of this machine.
            jobs: by UUID of the device or of the MIG instance.

        Raises:
            OSError: the directory cannot be written to.
        """
        names = {str(device.index): device.uuid for device in devices} | {
            f"{device.index}.{part.number}": part.uuid
            for device in devices
            for part in device.slices
        }
        wanted = {
            name: "".join(f"{job}\n" for job in jobs[uuid])
            for name, uuid in names.items()
            if jobs.get(uuid)
        }
        if wanted == self._told:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        for name, text in wanted.items():
            fresh = self._directory / f".{name}.new"
            fresh.write_text(text, encoding="utf-8")
            os.replace(fresh, self._directory / name)
        for file in self._directory.iterdir():
            # What an earlier run left names jobs that have ended.
            if _NAME.fullmatch(file.name) and file.name not in wanted:
                file.unlink(missing_ok=True)
        self._told = wanted
