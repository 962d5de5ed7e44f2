"""`tercio node`."""

from __future__ import annotations

import click
import msgspec

from tercio.cli import human, tables
from tercio.cli.commands.reserve import instant
from tercio.cli.commands.show import fetch_node, show_object
from tercio.cli.completing import Name
from tercio.cli.names import split_kind, suggest
from tercio.cli.output import Output, output_options, print_table, show_list
from tercio.cli.session import Session
from tercio.cli.verbs import Noun, pass_session
from tercio.client.transport import quote
from tercio.errors import UserError
from tercio.model.units import parse_duration_s
from tercio.model.views import NodeView


@click.group(cls=Noun)
def command() -> None:
    """List, show, cordon and drain nodes. `tercio node` alone lists them."""


@command.command("list", examples="tercio node list -o wide")
@click.option("--site", metavar="SITE", help="Only the nodes of this site.")
@output_options
@pass_session
def list_nodes(session: Session, site: str | None, output: Output) -> None:
    """List nodes: state, devices in use, and why one takes no work."""
    show_list(session, output, tables.nodes(), session.fetch_pages("/v1/nodes", site=site))


@command.command("show", examples="tercio node show n1")
@click.argument("name", metavar="NODE", type=Name("node"))
@output_options
@pass_session
def show(session: Session, name: str, output: Output) -> None:
    """Show one node with its devices and who holds them."""
    show_object(session, "node", _node_name(name), output)


@command.command("cordon", examples="tercio node cordon n1 --reason 'fan noise'")
@click.argument("names", metavar="NODE...", nargs=-1, required=True, type=Name("node"))
@click.option("--reason", default="", metavar="TEXT", help="Shown to whoever looks.")
@click.option("--plan", "is_plan", is_flag=True, help="Only show which nodes it would be.")
@pass_session
def cordon(session: Session, names: tuple[str, ...], reason: str, *, is_plan: bool) -> None:
    """Keep new work off nodes. What runs there goes on."""
    if is_plan:
        _show_planned(session, "cordoned", names)
        return
    for name in names:
        _tell(session, "cordoned", _on_node(session, "cordon", name, reason))


@command.command("uncordon", examples="tercio node uncordon n1")
@click.argument("names", metavar="NODE...", nargs=-1, required=True, type=Name("node"))
@click.option("--plan", "is_plan", is_flag=True, help="Only show which nodes it would be.")
@pass_session
def uncordon(session: Session, names: tuple[str, ...], *, is_plan: bool) -> None:
    """Let new work go to nodes again; lifts your own cordon, an admin's lifts any person's."""
    if is_plan:
        _show_planned(session, "uncordoned", names)
        return
    for name in names:
        _tell(session, "uncordoned", _on_node(session, "uncordon", name, ""))


@command.command("drain", examples="tercio node drain n1 --reason 'firmware' --yes")
@click.argument("name", metavar="NODE", type=Name("node"))
@click.option("--reason", default="", metavar="TEXT", help="Shown to whoever looks.")
@click.option("--plan", "is_plan", is_flag=True, help="Only show what would be stopped.")
@click.option("-y", "--yes", "is_yes", is_flag=True, help="Do not ask.")
@pass_session
def drain(session: Session, name: str, reason: str, *, is_plan: bool, is_yes: bool) -> None:
    """Empty a node: cordon it, stop its jobs with grace and queue them again.

    Shows the jobs it would stop before it asks.
    """
    node = msgspec.json.decode(fetch_node(session, _node_name(name)), type=NodeView)
    jobs = [session.client.job(job_id) for job_id in node.jobs]
    count = human.quantity(len(jobs), "job")
    session.note(
        f"draining {node.name} stops and requeues {count}:" if jobs else "no job runs there"
    )
    if jobs and (is_plan or not session.is_quiet):
        columns = [column for column in tables.jobs(session).columns if not column.is_wide]
        print_table(session, columns, jobs)
    if is_plan:
        return
    if jobs:
        session.confirm(f"drain {node.name} and stop {count}?", is_yes=is_yes)
    _tell(session, "draining", _on_node(session, "drain", node.name, reason))


@command.command(
    "maintain",
    examples="""
    tercio node maintain n1 n2 --from +2h --for 4h --reason 'new firmware'
    tercio reserve list            # the windows; `tercio reserve remove NAME` ends one early
    """,
)
@click.argument("names", metavar="NODE...", nargs=-1, required=True, type=Name("node"))
@click.option("--from", "start", metavar="WHEN", help="+2h, or RFC 3339; default: now.")
@click.option("--for", "duration", required=True, metavar="TIME", help="How long, such as 4h.")
@click.option("--reason", default="", metavar="TEXT", help="Shown to whoever looks.")
@click.option("--name", metavar="NAME", help="Of the window; default: after the first node.")
@pass_session
def maintain(
    session: Session,
    names: tuple[str, ...],
    *,
    start: str | None,
    duration: str,
    reason: str,
    name: str | None,
) -> None:
    """Plan work on nodes: no job starts there that would not end before.

    When the window opens, what still runs there is stopped with grace and queued again; when it
    is over the nodes come back by themselves.
    """
    from tercio.model.sharing_views import ReservationView

    nodes = [_node_name(each) for each in names]
    opens_s = instant(session, start, "--from") or repr(session.now_s())
    parse_duration_s(duration, field="--for")
    body = {
        "name": name or f"maintenance-{nodes[0]}-{int(float(opens_s))}",
        "nodes": nodes,
        "start": opens_s,
        "duration": duration,
        "reason": reason,
    }
    try:
        answer = session.post("/v1/reservations", msgspec.json.encode(body))
    except UserError as error:
        known = [node.name for node in session.client.every_node()]
        missing = next((node for node in nodes if node not in known), nodes[0])
        raise suggest(error, "node", missing, known) from None
    view = msgspec.json.decode(answer, type=ReservationView)
    opens = human.until(view.window[0], session.now_s()) if view.window else ""
    what = human.quantity(len(nodes), "node")
    session.note(f"window {view.name} for {what} opens {opens}, for {human.span(view.duration_s)}")


def _health_verb(verb: str, done: str, text: str, example: str) -> None:
    """Add `tercio node VERB` for a move of a node's health."""

    @command.command(verb, examples=example, help=text)
    @click.argument("names", metavar="NODE...", nargs=-1, required=True, type=Name("node"))
    @click.option("--reason", default="", metavar="TEXT", help="Shown to whoever looks.")
    @pass_session
    def move(session: Session, names: tuple[str, ...], reason: str) -> None:
        for name in names:
            path = f"/v1/nodes/{quote(_node_name(name))}/{verb}"
            try:
                body = session.post(path, msgspec.json.encode({"reason": reason}))
            except UserError as error:
                known = [node.name for node in session.client.every_node()]
                raise suggest(error, "node", _node_name(name), known) from None
            _tell(session, done, msgspec.json.decode(body, type=NodeView))


_health_verb(
    "quarantine",
    "quarantined",
    "Take nodes out: their jobs run elsewhere, and only health or a person brings them back.",
    "tercio node quarantine n1 --reason 'smells burnt'",
)
_health_verb(
    "probation",
    "on probation:",
    "Try mended nodes: they take work, and a fault that comes back counts double.",
    "tercio node probation n1 --reason 'GPU 3 swapped'",
)
_health_verb(
    "return",
    "returned",
    "Return nodes to service; what was wrong is taken as dealt with.",
    "tercio node return n1",
)
_health_verb(
    "retire",
    "retired",
    "Take quarantined nodes out for good.",
    "tercio node retire n1 --reason 'sent back'",
)


def _show_planned(session: Session, done: str, names: tuple[str, ...]) -> None:
    bodies = [fetch_node(session, _node_name(name)) for name in names]
    rows = [msgspec.json.decode(body, type=NodeView) for body in bodies]
    session.note(f"would be {done}:")
    print_table(session, [c for c in tables.nodes().columns if not c.is_wide], rows)


def _node_name(text: str) -> str:
    kind, name = split_kind(text)
    return name if kind in (None, "node") else text


def _on_node(session: Session, verb: str, text: str, reason: str) -> NodeView:
    name = _node_name(text)
    client = session.client
    try:
        match verb:
            case "cordon":
                return client.cordon(name, reason=reason)
            case "drain":
                return client.drain(name, reason=reason)
            case _:
                return client.uncordon(name)
    except UserError as error:
        raise suggest(error, "node", name, [node.name for node in client.every_node()]) from None


def _tell(session: Session, done: str, view: NodeView) -> None:
    why = tables.node_why(view)
    session.note(f"{done} {view.name} (now {view.state}{': ' + why if why else ''})")
