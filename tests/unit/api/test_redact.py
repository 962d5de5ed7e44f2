"""What a reader sees of other people's jobs and of tokens."""

import msgspec
import pytest

from tercio.api.redact import HIDDEN, redact_event, redact_job
from tercio.model import events as ev
from tercio.model.identity import Principal, Role, Token
from tercio.model.job import EndCause, JobSpec, NotifySpec
from tercio.model.queue import Policy
from tercio.model.reasons import Reason
from tercio.model.views import JobView

ANA = Principal(user="ana", tenant="red")
COLLEAGUE = Principal(user="bob", tenant="red")
STRANGER = Principal(user="eve", tenant="blue")
OPERATOR = Principal(user="op", tenant="ops", role=Role.OPERATOR)
ADMIN = Principal(user="root", tenant="ops", role=Role.ADMIN)

SPEC = JobSpec(
    name="train",
    run="python train.py",
    env={"WANDB_API_KEY": "hush"},
    notify=(NotifySpec(on=("failed",), url="https://hooks.example/hush"),),
)
SUBMITTED = ev.JobSubmitted(
    at_s=1.0, job_id="job-1", spec=SPEC, queue="q", user="ana", tenant="red", submit_key="hush"
)
BY_SAMPLE = [
    ev.JobHeld(at_s=1.0, job_id="job-1", by="secret-ana"),
    ev.JobReleased(at_s=1.0, job_id="job-1", by="secret-ana"),
    ev.JobCancelRequested(at_s=1.0, job_id="job-1", by="secret-ana", reason="secret"),
    ev.JobRequeueRequested(at_s=1.0, job_id="job-1", by="secret-ana"),
    ev.JobSuspendRequested(at_s=1.0, job_id="job-1", by="secret-ana"),
    ev.JobResumeRequested(at_s=1.0, job_id="job-1", by="secret-ana"),
    ev.JobEvicted(at_s=1.0, job_id="job-1", cause=EndCause.PREEMPTED, message="secret"),
    ev.JobWaited(at_s=1.0, job_id="job-1", reason=Reason.ORDER, message="secret"),
    ev.TaskStarted(at_s=1.0, job_id="job-1", attempt=1, task=0, effect_id="x", detail="secret"),
    ev.TaskLaunchFailed(
        at_s=1.0, job_id="job-1", attempt=1, task=0, effect_id="x", message="secret"
    ),
    ev.TaskExited(at_s=1.0, job_id="job-1", attempt=1, task=0, message="secret"),
    ev.EffectAnswered(at_s=1.0, effect_id="notify:job-1/1", message="secret"),
]


def text(event):
    return msgspec.json.encode(event).decode()


def test_the_owner_sees_everything_of_the_job():
    assert redact_event(SUBMITTED, ANA, "red") is SUBMITTED


@pytest.mark.parametrize("reader", [OPERATOR, ADMIN])
def test_operators_see_everything_of_any_job(reader):
    assert redact_event(SUBMITTED, reader, "red") is SUBMITTED


def test_a_colleague_sees_the_job_but_no_environment_and_no_webhook():
    seen = redact_event(SUBMITTED, COLLEAGUE, "red")
    assert seen.spec.run == "python train.py"
    assert seen.spec.env == {"WANDB_API_KEY": HIDDEN}
    assert "hush" not in text(seen)


def test_a_stranger_sees_an_id_and_a_queue():
    seen = redact_event(SUBMITTED, STRANGER, "red")
    assert (seen.job_id, seen.queue, seen.user, seen.tenant) == ("job-1", "q", HIDDEN, HIDDEN)
    for word in ("train", "hush", "ana", "red"):
        assert f'"{word}' not in text(seen)


@pytest.mark.parametrize("event", BY_SAMPLE, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("tenant", ["red", None])
def test_a_stranger_sees_no_prose_and_no_names_of_a_job(event, tenant):
    assert "secret" not in text(redact_event(event, STRANGER, tenant))
    assert redact_event(event, OPERATOR, tenant) is event


@pytest.mark.parametrize("event", BY_SAMPLE, ids=lambda event: type(event).__name__)
def test_a_colleague_sees_what_happened(event):
    assert redact_event(event, COLLEAGUE, "red") is event


def test_every_event_of_a_job_with_words_in_it_is_in_the_sample():
    """A new event with a free text must be thought about here."""
    free = {"by", "reason", "message", "detail"}
    fields = {
        kind: free.intersection(kind.__struct_fields__)
        for kind in ev.AnyEvent.__args__
        if issubclass(kind, ev.JobEvent | ev.EffectAnswered)
    }
    assert {k for k, found in fields.items() if found} == {type(e) for e in BY_SAMPLE}


def test_the_digest_of_a_token_is_shown_to_nobody():
    token = Token(token_id="tok-1", sha256="abc123", principal=ANA)
    event = ev.TokenCreated(at_s=1.0, token=token, by="root")
    assert "abc123" not in text(redact_event(event, ADMIN, None))
    assert "ana" in text(redact_event(event, ADMIN, None))
    assert "ana" not in text(redact_event(event, OPERATOR, None))


def test_events_of_the_cluster_are_for_everybody():
    event = ev.PolicyChanged(at_s=1.0, version=2, policy=Policy(), by="root")
    assert redact_event(event, STRANGER, None) is event


def test_a_job_view_hides_the_environment_from_colleagues_only():
    view = JobView(
        id="job-1",
        name="train",
        queue="q",
        user="ana",
        tenant="red",
        state="running",
        submitted_s=1.0,
        spec=SPEC,
    )
    assert redact_job(view, ANA) is view
    assert redact_job(view, OPERATOR) is view
    assert "hush" not in text(redact_job(view, COLLEAGUE))
