"""The columns of every table: what a tired person needs to see first, units spelled out."""

from __future__ import annotations

from typing import Final

from tercio.cli import human
from tercio.cli.output import Column, Listing, state_column
from tercio.cli.session import Session
from tercio.model.views import JobView, NodeView, QueueView, TokenView, UsageRow

WAITING_STATES: Final = ("queued", "held")


def job_why(job: JobView) -> str:
    """Say why a job waits or how it ended; nothing for one that runs or succeeded."""
    if job.state == "succeeded":
        return ""
    if job.reason and not job.message.lower().startswith(job.reason.lower()):
        return f"{job.reason}: {human.told(job.message)}" if job.message else job.reason
    return human.told(job.message)


def job_where_or_why(job: JobView) -> str:
    """Say in one cell what a person looks for: why it waits or failed, else where it is."""
    return job_why(job) or node_names(job.nodes)


def job_start(job: JobView, now_s: float) -> str:
    """Print when a waiting job should start."""
    if job.state not in WAITING_STATES or job.start is None:
        return human.NOTHING
    return human.until(job.start.at_s, now_s)


def job_time(job: JobView, now_s: float) -> str:
    """Print how long a job has been in what its state says: waiting, or running of its limit."""
    if job.started_s is None:
        return human.span((job.ended_s or now_s) - job.submitted_s)
    return job_run_time(job, now_s)


def job_run_time(job: JobView, now_s: float) -> str:
    """Print how long a job has run, of its limit where it has one."""
    if job.started_s is None:
        return human.NOTHING
    elapsed = human.span((job.ended_s or now_s) - job.started_s)
    if job.limit_s is not None and job.ended_s is None:
        return f"{elapsed}/{human.span(job.limit_s)}"
    return elapsed


def job_progress(job: JobView) -> str:
    """Print the state of a job; of an array, how far its elements are."""
    if job.array is None:
        return human.NOTHING
    done = job.array.succeeded + job.array.failed + job.array.cancelled
    failed = f", {job.array.failed} failed" if job.array.failed else ""
    return f"{done}/{job.array.size} done, {job.array.active} active{failed}"


def node_names(nodes: tuple[str, ...]) -> str:
    """Print the nodes of a job in one cell."""
    if len(nodes) > 3:
        return f"{nodes[0]}..{nodes[-1]} ({len(nodes)})"
    return ",".join(nodes) or human.NOTHING


def jobs(session: Session) -> Listing[JobView]:
    """Return the listing of jobs."""
    now_s = session.now_s()
    columns: tuple[Column[JobView], ...] = (
        Column("ID", "id", lambda job: job.id),
        Column("NAME", "name", lambda job: job.name),
        Column("USER", "user", lambda job: job.user, spare=2),
        Column("QUEUE", "queue", lambda job: job.queue, spare=1),
        state_column("state", lambda job: job.state),
        Column("TASKS", "task_count", lambda j: str(j.task_count), is_wide=True, is_right=True),
        Column("DEVICES", "devices", lambda job: human.devices(job.devices)),
        Column("TIME", "started_s", lambda job: job_time(job, now_s), is_right=True),
        Column("START", "start", lambda job: job_start(job, now_s), spare=3),
        Column("PRIORITY", "priority", lambda j: str(j.priority), is_wide=True, is_right=True),
        Column("ATTEMPT", "attempt", lambda j: str(j.attempt), is_wide=True, is_right=True),
        Column("NODES", "nodes", lambda job: node_names(job.nodes), is_wide=True),
        Column(
            "AGE",
            "submitted_s",
            lambda j: human.ago(j.submitted_s, now_s),
            is_wide=True,
            is_right=True,
        ),
        Column("ARRAY", "array", job_progress, is_wide=True),
        Column("ENDED", "ended_s", lambda j: human.ago(j.ended_s, now_s), is_wide=True),
        Column("TENANT", "tenant", lambda job: job.tenant, is_wide=True),
        Column("WHERE OR WHY", "message", job_where_or_why, is_flexible=True),
    )
    return Listing(columns, JobView, lambda job: job.id, "no jobs; see 'tercio ps --all' for ended")


def node_use(node: NodeView) -> str:
    """Print used of total devices of a node."""
    used = {kind: total - node.free.get(kind, 0.0) for kind, total in node.total.items()}
    return human.shares(used, node.total)


def node_why(node: NodeView) -> str:
    """Say why a node takes no work: its cordons first, then the reason of its state."""
    cordons = [f"{c.owner}: {c.reason}" if c.reason else c.owner for c in node.cordons]
    return "; ".join(cordons) or node.reason


def nodes() -> Listing[NodeView]:
    """Return the listing of nodes."""
    columns: tuple[Column[NodeView], ...] = (
        Column("NAME", "name", lambda node: node.name),
        Column("SITE", "site", lambda node: node.site),
        Column("POOL", "pool", lambda node: node.pool or human.NOTHING),
        state_column("state", lambda node: node.state),
        Column("DEVICES", "total", node_use),
        Column(
            "CPUS",
            "cpus",
            lambda n: f"{human.number(n.cpus - n.cpus_free)}/{human.number(n.cpus)}",
            is_right=True,
        ),
        Column(
            "MEMORY",
            "memory_bytes",
            lambda n: human.memory_share(n.memory_bytes - n.memory_free_bytes, n.memory_bytes),
            is_right=True,
        ),
        Column("JOBS", "jobs", lambda n: str(len(n.jobs)), is_right=True),
        Column(
            "LABELS",
            "labels",
            lambda n: ",".join(f"{k}={v}" for k, v in n.labels.items()) or human.NOTHING,
            is_wide=True,
        ),
        Column("WHY", "reason", node_why, is_flexible=True),
    )
    return Listing(columns, NodeView, lambda node: node.name, "no nodes have reported yet")


def queue_indent(path: str) -> str:
    """Indent a queue below its parent by the depth of its path."""
    return "  " * path.count("/") + path


def used_elsewhere(*, is_shown: bool) -> tuple[Column[QueueView], ...]:
    """Return the column of what queues use at other sites than the one asked for, if it is."""
    if not is_shown:
        return ()
    title = "USED ELSEWHERE"
    return (Column(title, "used_elsewhere", lambda queue: human.amounts(queue.used_elsewhere)),)


def queues(*, has_elsewhere: bool = False) -> Listing[QueueView]:
    """Return the listing of queues; of one site, with what they use elsewhere."""
    columns: tuple[Column[QueueView], ...] = (
        Column("QUEUE", "path", lambda queue: queue_indent(queue.path)),
        Column("RUNNING", "running", lambda queue: str(queue.running), is_right=True),
        Column("WAITING", "waiting", lambda queue: str(queue.waiting), is_right=True),
        Column("USED", "used", lambda queue: human.amounts(queue.used)),
        *used_elsewhere(is_shown=has_elsewhere),
        Column("ENTITLED", "entitled", lambda queue: human.amounts(queue.entitled)),
        Column(
            "GUARANTEE",
            "guarantee",
            lambda queue: human.guarantee(queue.guarantee, queue.guarantee_shape),
        ),
        Column("LIMIT", "limit", lambda queue: human.amounts(queue.limit)),
        Column("WEIGHT", "weight", lambda queue: str(queue.weight), is_right=True),
        Column("ORDER", "order", lambda queue: queue.order, is_wide=True),
        Column(
            "PREEMPTIBLE",
            "preemptible",
            lambda queue: "yes" if queue.preemptible else "no",
            is_wide=True,
        ),
        Column(
            "PAST USE",
            "decayed_use",
            lambda queue: human.past_use(queue.decayed_use),
            is_wide=True,
            is_right=True,
        ),
    )
    return Listing(columns, QueueView, lambda queue: queue.path, "no queues")


def usage(by: str) -> Listing[UsageRow]:
    """Return the listing of device time by user or queue."""
    columns: tuple[Column[UsageRow], ...] = (
        Column(by.upper(), "key", lambda row: row.key),
        Column("JOBS", "jobs", lambda row: str(row.jobs), is_right=True),
        Column("DEVICE HOURS", "device_ms", lambda row: human.device_hours(row.device_ms)),
    )
    return Listing(columns, UsageRow, lambda row: row.key, "no device time was used yet")


def tokens(session: Session) -> Listing[TokenView]:
    """Return the listing of tokens."""
    now_s = session.now_s()
    columns: tuple[Column[TokenView], ...] = (
        Column("ID", "token_id", lambda token: token.token_id),
        Column("USER", "user", lambda token: token.user),
        Column("ROLE", "role", lambda token: token.role),
        Column("TENANT", "tenant", lambda token: token.tenant),
        Column("GROUPS", "groups", lambda token: ",".join(token.groups) or human.NOTHING),
        Column("EXPIRES", "expires_s", lambda token: human.until(token.expires_s, now_s)),
    )
    return Listing(columns, TokenView, lambda token: token.token_id, "no tokens")
