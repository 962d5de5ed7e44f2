"""What a person says of a Slurm site when adding it. Light: the command line imports it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Flag = Annotated[bool, Meta(description="Run Slurm's commands on this machine (the default).")]


class SlurmOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `tercio site add slurm`; the descriptions are what its help shows."""

    local: Flag = False
    ssh: Annotated[str, Meta(description="Run Slurm's commands on this login: USER@HOST.")] = ""
    rest: Annotated[
        str, Meta(description="Read jobs and nodes from slurmrestd: http://HOST:PORT or unix:PATH.")
    ] = ""
    token_file: Annotated[
        str, Meta(description="File with the JWT for --rest; default: scontrol token.")
    ] = ""
    mode: Annotated[
        Literal["placed", "delegated"],
        Meta(description="Who chooses nodes: Tercio (placed, the default) or Slurm (delegated)."),
    ] = "placed"
    spool: Annotated[
        str, Meta(description="Directory that this machine and every node see at the same path.")
    ] = ""
    conf: Annotated[str, Meta(description="slurm.conf for the commands (SLURM_CONF).")] = ""
    partition: Annotated[
        tuple[str, ...], Meta(description="Use only these partitions; default: the default one.")
    ] = ()
    device_type: Annotated[
        tuple[str, ...],
        Meta(description="PARTITION=TYPE for nodes whose GRES names no type, such as gpu=A100."),
    ] = ()
    label: Annotated[
        tuple[str, ...],
        Meta(description="NAME=VALUE for every node, such as fabric=infiniband."),
    ] = ()
    prefix: Annotated[
        str, Meta(description="Put before node names, where two sites have equal ones.")
    ] = ""
    account: Annotated[str, Meta(description="Slurm account to submit under.")] = ""
    qos: Annotated[str, Meta(description="QOS to submit with.")] = ""
    run_as: Annotated[
        str, Meta(description="User for jobs whose own user Slurm does not know.")
    ] = ""
    drains_nodes: Annotated[
        bool, Meta(description="Drain nodes in Slurm while they are cordoned in Tercio.")
    ] = False
    containers: Annotated[
        Literal["auto", "off", "pyxis", "apptainer", "singularity"],
        Meta(description="What runs container images on the nodes; default: what is found."),
    ] = "auto"
    python: Annotated[str, Meta(description="Python 3.6 or newer on the nodes.")] = "python3"
    poll_s: Annotated[float, Meta(description="Seconds between two looks at the queue.")] = 2.0

    start_wait_s: Annotated[
        float,
        Meta(description="Seconds that Slurm has to start a placed task."),
    ] = 20.0

    def types_by_partition(self) -> dict[str, str]:
        """Return `device_type` by partition."""
        pairs = (text.partition("=") for text in self.device_type)
        return {name: kind for name, _, kind in pairs}

    def labels(self) -> dict[str, str]:
        """Return `label` by name."""
        pairs = (text.partition("=") for text in self.label)
        return {name: value for name, _, value in pairs}

    def __post_init__(self) -> None:
        chosen = [name for name in ("local", "ssh") if getattr(self, name)]
        if len(chosen) > 1:
            raise ValueError("local and ssh exclude each other")
        if self.spool and not self.spool.startswith("/"):
            raise ValueError(f"spool '{self.spool}' is not an absolute path")
        if self.rest and not self.rest.startswith(("http://", "https://", "unix:/")):
            raise ValueError(f"rest '{self.rest}' is neither http://HOST:PORT nor unix:/PATH")
        if any("=" not in text for text in self.device_type):
            raise ValueError("device_type is PARTITION=TYPE, such as gpu=A100")
        if any(not text.partition("=")[0] or "=" not in text for text in self.label):
            raise ValueError("label is NAME=VALUE, such as fabric=infiniband")
        if self.start_wait_s <= 0:
            raise ValueError("start_wait_s must be more than 0")
        if not 0.05 <= self.poll_s <= 300.0:
            raise ValueError("poll_s must be 0.05 to 300")
