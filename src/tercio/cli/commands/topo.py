"""`tercio topo`."""

from __future__ import annotations

import click
import msgspec

from tercio.cli import sharing
from tercio.cli.output import Output, output_options, show_rows, write_body
from tercio.cli.session import Session
from tercio.cli.verbs import Verb, pass_session
from tercio.model.sharing_views import TopologyView


class _Rows(msgspec.Struct):
    rows: tuple[msgspec.Raw, ...]


@click.command(
    cls=Verb,
    examples="""
    tercio topo
    tercio topo --gpus 4 --nodes      # gangs of 4 devices a task, node by node
    """,
)
@click.option(
    "-g", "--gpus", type=click.IntRange(1, 1024), metavar="N",
    help="Devices of each task of the gang; default: all of a node.",
)  # fmt: skip
@click.option("--nodes", "has_nodes", is_flag=True, help="List the nodes too.")
@click.option("--site", metavar="SITE", help="Count the nodes of this site only.")
@output_options
@pass_session
def command(
    session: Session, *, gpus: int | None, has_nodes: bool, site: str | None, output: Output
) -> None:
    """Show free capacity by domain, and the largest gang that fits at each level.

    A gang is counted as a job would be placed: with the policy's share of cores and memory for
    each device. Promises and reservations are not taken out.
    """
    body = session.fetch("/v1/topology", devices=gpus, nodes=has_nodes or None, site=site)
    if output.format == "json" and not output.fields:
        write_body(body)
    elif output.is_table and not output.fields:
        sharing.topology(session, msgspec.json.decode(body, type=TopologyView))
    else:
        rows = msgspec.json.decode(body, type=_Rows).rows
        show_rows(session, output, sharing.DOMAINS, rows)
