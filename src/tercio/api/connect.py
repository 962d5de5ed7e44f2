"""The engines of this server, made from its configuration; each is one site."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tercio.config import Config
from tercio.engines.base import Engine
from tercio.engines.registry import SiteRoom, engine_class
from tercio.engines.sites import connect_site, read_sites
from tercio.errors import UserError
from tercio.formats import cards
from tercio.formats.cluster import CLUSTER_SHAPE, read_cluster
from tercio.model.ids import SiteName
from tercio.model.node import NodeSpec

ReadNode = Callable[[Callable[[int], bool]], NodeSpec | tuple[NodeSpec, ...]]
LOCAL = SiteName("local")
SIM = SiteName("sim")


def make_engines(
    config: Config, *, clock: Callable[[], float], workdir_of: Callable[[str], Path]
) -> dict[SiteName, Engine]:
    """Return the configured engines by site, not open yet.

    Raises:
        UserError: a cluster file that cannot be read, or an added site that is not right.
    """
    engines: dict[SiteName, Engine] = {}
    if config.local.enabled:
        engines[LOCAL] = _local(config, clock, workdir_of)
    if config.sim.cluster:
        nodes = simulated_nodes(config.sim.cluster)
        if config.sim.readings:
            from tercio.engines.sim.readings import with_identity

            nodes = tuple(with_identity(node) for node in nodes)
        engines[SIM] = engine_class("sim")(site=SIM, nodes=nodes, clock=clock)
    room = SiteRoom(clock=clock, state_dir=config.state_path.absolute(), workdir_of=workdir_of)
    for site in read_sites(config.state_path):
        engines[site.name] = connect_site(site, room)
    return engines


def _local(config: Config, clock: Callable[[], float], workdir_of: Callable[[str], Path]) -> Engine:
    from tercio.collect.cutting import cut_device
    from tercio.collect.inventory import MachineReader
    from tercio.collect.probe import probe_devices
    from tercio.collect.several import SeveralNodes, parse_nodes
    from tercio.engines.local.cutting import NOT_ROOT
    from tercio.engines.local.settings import LocalSettings

    settings = LocalSettings(
        tasks_dir=str(config.state_path.absolute() / "tasks"),
        run_as=config.local.run_as or None,
        log_cap_bytes=config.local.log_bytes_max * config.local.log_files_max,
        containers=config.local.containers,
    )
    probe_s = config.health.probe_timeout_s
    machine = MachineReader(
        site=LOCAL,
        cards=cards,
        cpu_devices=config.local.cpu_devices,
        probe=lambda: probe_devices(timeout_s=probe_s),
        fixed="" if os.geteuid() == 0 else NOT_ROOT,
    )
    reader: ReadNode = machine
    if config.local.nodes:
        reader = SeveralNodes(machine, parse_nodes(config.local.nodes))
    return engine_class("local")(
        site=LOCAL,
        settings=settings,
        clock=clock,
        read_node=reader,
        workdir_of=workdir_of,
        cut=cut_device,
    )


def simulated_nodes(cluster: str) -> tuple[NodeSpec, ...]:
    """Return the nodes of a cluster file, or of a shape such as `8x8`."""
    path = Path(cluster)
    if not path.is_file():
        if not CLUSTER_SHAPE.fullmatch(cluster):
            raise UserError(
                f"sim.cluster: '{cluster}' is neither a shape nor a file",
                hint="write a shape such as 8x8 (nodes x devices), or name a cluster file",
                field="sim.cluster",
            )
        return read_cluster(cluster, site=SIM)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"sim.cluster: {cluster} cannot be read: {error}", field="sim.cluster"
        ) from None
    return read_cluster(text, site=SIM)
