"""Makes the engine of a Slurm site from its options."""

from __future__ import annotations

import getpass
from typing import cast

import msgspec

from tercio.engines.registry import SiteRoom
from tercio.engines.slurm.commands import Commands, LocalCommands, SshCommands
from tercio.engines.slurm.engine import SlurmEngine
from tercio.engines.slurm.options import SlurmOptions
from tercio.engines.slurm.reader import CommandReader, Reader, RestReader
from tercio.engines.slurm.rest import Rest
from tercio.engines.slurm.spool import LocalSpool, Spool
from tercio.engines.slurm.ssh_spool import SshSpool
from tercio.engines.slurm.submit import CommandSubmitter, RestSubmitter, Submitter
from tercio.model.ids import SiteName


def connect(site: SiteName, options: msgspec.Struct, room: SiteRoom) -> SlurmEngine:
    """Return the engine, not open yet; see `registry.ConnectSite`."""
    options = cast("SlurmOptions", options)
    commands: Commands
    spool: Spool
    if options.ssh:
        ssh = SshCommands(login=options.ssh, conf=options.conf, control_dir=room.state_dir / "ssh")
        commands, spool = ssh, SshSpool(ssh, options.spool or f".tercio/{site}")
    else:
        commands = LocalCommands(conf=options.conf)
        spool = LocalSpool(options.spool or str(room.state_dir / "sites" / site))
    return make_engine(site, options, room, commands, spool)


def make_engine(
    site: SiteName, options: SlurmOptions, room: SiteRoom, commands: Commands, spool: Spool
) -> SlurmEngine:
    """Return the engine that uses these commands and this spool."""
    reader: Reader = CommandReader(commands)
    submitter: Submitter = CommandSubmitter(commands)
    if options.rest:
        rest = Rest(
            url=options.rest,
            user=getpass.getuser(),
            token_file=options.token_file,
            commands=commands,
            clock=room.clock,
        )
        reader, submitter = RestReader(rest, room.clock), RestSubmitter(rest, submitter)
    return SlurmEngine(
        site=site,
        options=options,
        commands=commands,
        reader=reader,
        submitter=submitter,
        spool=spool,
        clock=room.clock,
        workdir_of=room.workdir_of,
    )
