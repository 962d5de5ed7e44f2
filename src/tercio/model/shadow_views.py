"""What the API shows of a policy that runs in shadow."""

from __future__ import annotations

import msgspec

from tercio.model.views import View


class ShadowWaits(msgspec.Struct, frozen=True, kw_only=True):
    """Waits from submit to start, in seconds, of jobs that started under both policies."""

    mean_s: float
    p50_s: float
    p95_s: float


class ShadowQueue(msgspec.Struct, frozen=True, kw_only=True):
    """One queue, or all of them together, since the shadow began.

    Attributes:
        jobs: that started under both policies.
        earlier, later: of them, those that the shadow started so, by more than a moment.
        earlier_s, later_s: by how much, all of them together.
        live_waits, shadow_waits: of `jobs`; None without any.
        only_live, only_shadow: jobs that started under one policy and still wait under the other.
        live_evictions, shadow_evictions: attempts stopped for another job.
        spared, struck: evictions that the shadow would not have made, and those only it made.
        refused: submits that the shadow's policy has no queue for.
    """

    queue: str
    jobs: int = 0
    earlier: int = 0
    later: int = 0
    earlier_s: float = 0.0
    later_s: float = 0.0
    live_waits: ShadowWaits | None = None
    shadow_waits: ShadowWaits | None = None
    only_live: int = 0
    only_shadow: int = 0
    live_evictions: int = 0
    shadow_evictions: int = 0
    spared: int = 0
    struck: int = 0
    refused: int = 0


class ShadowDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One decision that was not the same.

    Attributes:
        what: `earlier`, `later`, `spared` (evicted live only), `struck` (evicted in the shadow
            only), `refused`, or of now `runs here only` and `waits here only`.
        live_s, shadow_s: instants of the start or eviction under each policy, None where there
            was none.
    """

    job: str
    name: str
    queue: str
    user: str
    what: str
    live_s: float | None = None
    shadow_s: float | None = None


class ShadowReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a shadow came to so far.

    Attributes:
        since_s: when it began, seconds since the epoch.
        as_of_s: how far it has got; the tally is of then.
        from_seq, seq: entries of the live journal: where it began, and the last one it read.
        total: all queues together.
        queues: by name.
        now: jobs that run under one policy and wait under the other, as of `as_of_s`.
        recent: the last differences, newest first.
        waits_for: job of unknown run time that holds it up, or None.
        guessed: run times that had to be guessed.
        passed_over: requests that could not be made in the shadow, such as to suspend a job that
            had not started there.
        live_version: version of the policy in force.
        live_changes: how often that changed since the shadow began.
    """

    since_s: float
    as_of_s: float
    from_seq: int
    seq: int
    total: ShadowQueue
    queues: tuple[ShadowQueue, ...]
    now: tuple[ShadowDifference, ...]
    recent: tuple[ShadowDifference, ...]
    waits_for: str | None
    guessed: int
    passed_over: int
    live_version: int
    live_changes: int


class PolicyShadowView(View, frozen=True, kw_only=True):
    """A policy in shadow.

    Attributes:
        source: of the policy, as its file is called.
        by: who began it.
        state: `starting`, `following`, `behind` or `failed`.
        lag_s: how long it waits for the run time of a job, before it is guessed.
        newest_seq: of the live journal; `behind` entries of it are not read yet.
        note: why it began anew after a restart; empty when it did not.
        error: why it failed; empty when it did not.
        report: None until it says something.
    """

    kind: str = "PolicyShadow"
    source: str
    by: str
    state: str
    lag_s: float
    newest_seq: int
    behind: int = 0
    note: str = ""
    error: str = ""
    report: ShadowReport | None = None
