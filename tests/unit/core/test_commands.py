"""Who may ask for what, and what makes no sense now."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from tercio.core.commands import NOT_YET, to_events
from tercio.core.story import sentence
from tercio.errors import UserError
from tercio.formats.support import FEATURES
from tercio.model.commands import (
    AnyCommand,
    CancelJob,
    CordonNode,
    CreateToken,
    DrainNode,
    HoldJob,
    ReleaseJob,
    RequeueJob,
    ResumeJob,
    RevokeToken,
    SetPolicy,
    SubmitJob,
    SuspendJob,
    UncordonNode,
)
from tercio.model.events import (
    EffectAnswered,
    JobSubmitted,
    NodeCordoned,
    NodeLost,
    NodeUncordoned,
    PolicyChanged,
    TimeLimitReached,
    TokenCreated,
)
from tercio.model.identity import Principal, Role, Token
from tercio.model.ids import EffectId, JobId, NodeName
from tercio.model.job import ArraySpec, Dependency, IndexRange, NodeFilter, TimeSpec
from tercio.model.node import Cordon
from tercio.model.resources import Request
from tercio.testing import make_job, make_policy, make_principal, make_queue

from .machine import Machine

ANA = make_principal("ana")
BOB = make_principal("bob")
VIEWER = make_principal("eve", Role.VIEWER)
OPERATOR = make_principal("op", Role.OPERATOR)
ADMIN = make_principal("root", Role.ADMIN)
N1 = NodeName("n1")


def ask(machine: Machine, command: AnyCommand, principal: Principal) -> list[str]:
    events = to_events(machine.cluster, command, principal, machine.now_s)
    for event in events:
        machine.do(event)
        assert sentence(event, "x")
    return [type(event).__name__ for event in events]


def refusal(machine: Machine, command: AnyCommand, principal: Principal) -> UserError:
    before = machine.cluster.state_hash()
    with pytest.raises(UserError) as caught:
        to_events(machine.cluster, command, principal, machine.now_s)
    assert machine.cluster.state_hash() == before
    return caught.value


def test_submit_gives_ids_in_order_and_the_default_queue(machine: Machine) -> None:
    for number in (1, 2):
        (event,) = to_events(machine.cluster, SubmitJob(spec=make_job()), ANA, machine.now_s)
        assert isinstance(event, JobSubmitted)
        assert (event.job_id, event.queue, event.user) == (f"job-0000{number}", "default", "ana")
        machine.do(event)


def test_a_repeated_submit_key_makes_no_second_job(machine: Machine) -> None:
    command = SubmitJob(spec=make_job(), submit_key="k1")
    assert ask(machine, command, ANA) == ["JobSubmitted"]
    assert ask(machine, command, ANA) == []
    assert ask(machine, command, BOB) == ["JobSubmitted"]
    namesake = make_principal("ana", tenant="other")
    assert ask(machine, command, namesake) == ["JobSubmitted"]


def test_a_submit_key_that_stood_for_another_job_is_refused(machine: Machine) -> None:
    ask(machine, SubmitJob(spec=make_job(), submit_key="k1"), ANA)
    error = refusal(machine, SubmitJob(spec=make_job(name="b"), submit_key="k1"), ANA)
    assert (error.code, error.field) == ("conflict", "Idempotency-Key")


@pytest.mark.parametrize(
    ("command", "principal", "code"),
    [
        (SubmitJob(spec=make_job()), VIEWER, "forbidden"),
        (SubmitJob(spec=make_job(queue="defualt")), ANA, "not_found"),
        (CordonNode(node=N1), ANA, "forbidden"),
        (CordonNode(node=NodeName("n2")), OPERATOR, "not_found"),
        (CancelJob(job_id=JobId("job-0000x")), ANA, "not_found"),
        (SetPolicy(policy=make_policy()), OPERATOR, "forbidden"),
        (SetPolicy(policy=make_policy(), if_version=7), ADMIN, "conflict"),
        (RevokeToken(token_id="t1"), OPERATOR, "forbidden"),
        (RevokeToken(token_id="t1"), ADMIN, "not_found"),
    ],
)
def test_refusals_change_nothing_and_say_what_to_do(
    machine: Machine, command: AnyCommand, principal: Principal, code: str
) -> None:
    error = refusal(machine, command, principal)
    assert error.code == code
    assert error.hint


def test_a_missing_queue_is_named_with_the_nearest(machine: Machine) -> None:
    error = refusal(machine, SubmitJob(spec=make_job(queue="defualt")), ANA)
    assert (error.field, error.hint) == ("queue", "did you mean 'default'?")


def test_unknown_dependencies_are_refused(machine: Machine) -> None:
    spec = make_job(depends_on=(Dependency(job=JobId("job-09999")),))
    assert refusal(machine, SubmitJob(spec=spec), ANA).field == "depends_on[0].job"


def test_a_job_of_another_tenant_is_no_dependency(machine: Machine) -> None:
    spec = make_job(depends_on=(Dependency(job=machine.submit()),))
    stranger = make_principal("zoe", tenant="other")
    assert refusal(machine, SubmitJob(spec=spec), stranger).code == "not_found"
    assert ask(machine, SubmitJob(spec=spec), OPERATOR) == ["JobSubmitted"]


def test_what_has_no_behaviour_yet_is_refused_and_not_ignored(machine: Machine) -> None:
    assert set(FEATURES) >= NOT_YET
    spec = make_job(group={"per_task": Request(is_auto=True)})
    error = refusal(machine, SubmitJob(spec=spec), ANA)
    assert (error.code, error.field) == ("unsupported", "per_task.devices")
    ask(machine, SubmitJob(spec=make_job(nodes=NodeFilter(match="pool == 'H100'"))), ANA)


def test_a_deadline_that_has_passed_is_refused(machine: Machine) -> None:
    time = TimeSpec(deadline_s=machine.now_s)
    error = refusal(machine, SubmitJob(spec=make_job(time=time)), ANA)
    assert (error.code, error.field) == ("invalid", "time.deadline")
    time = TimeSpec(deadline_s=machine.now_s + 60)
    ask(machine, SubmitJob(spec=make_job(time=time)), ANA)


def test_guarantees_by_shape_are_compared_with_the_domains_there_are(machine: Machine) -> None:
    there = len(machine.cluster.nodes)

    def shaped(count: int, *, overcommit: bool = False) -> SetPolicy:
        policy = make_policy({"lab": make_queue(guarantee_shape={"node": count})})
        return SetPolicy(policy=msgspec.structs.replace(policy, overcommit=overcommit))

    error = refusal(machine, shaped(there + 1), ADMIN)
    assert f"guarantees of {there + 1} whole nodes, but the cluster has" in str(error)
    ask(machine, shaped(there + 1, overcommit=True), ADMIN)
    ask(machine, shaped(there), ADMIN)
    name = next(iter(machine.cluster.nodes))
    machine.do(NodeLost(at_s=machine.now_s, node=name, reason="gone"))
    ask(machine, shaped(there), ADMIN)


def test_submit_rules_come_from_the_nearest_queue(machine: Machine) -> None:
    lab = make_queue(submit=("group:nlp",), children={"open": make_queue(submit=("user:bob",))})
    policy = make_policy({"lab": lab})
    machine.do(PolicyChanged(at_s=machine.now_s, version=1, policy=policy, by="root"))
    member = make_principal("ana", groups=("nlp",))
    ask(machine, SubmitJob(spec=make_job(queue="lab")), member)
    ask(machine, SubmitJob(spec=make_job(queue="lab/open")), BOB)
    ask(machine, SubmitJob(spec=make_job(queue="lab/open")), ADMIN)
    for queue, asker in (("lab", BOB), ("lab/open", member)):
        assert refusal(machine, SubmitJob(spec=make_job(queue=queue)), asker).code == "forbidden"


@pytest.mark.parametrize("make", [CancelJob, HoldJob])
def test_only_owners_queue_admins_and_operators_change_a_job(
    machine: Machine, make: Callable[..., AnyCommand]
) -> None:
    policy = make_policy({"default": make_queue(admin=("user:carl",))})
    machine.do(PolicyChanged(at_s=machine.now_s, version=1, policy=policy, by="root"))
    for asker in (ANA, make_principal("carl"), OPERATOR):
        job_id = machine.submit()
        assert refusal(machine, make(job_id=job_id), BOB).code == "forbidden"
        assert ask(machine, make(job_id=job_id), asker)


def test_a_job_of_another_tenant_is_not_mine(machine: Machine) -> None:
    job_id = machine.submit()
    namesake = make_principal("ana", tenant="other")
    assert refusal(machine, CancelJob(job_id=job_id), namesake).code == "forbidden"


def test_verbs_at_the_wrong_moment_say_what_would_be_right(machine: Machine) -> None:
    ended = machine.run()
    machine.exit(ended)
    running = machine.run()
    waiting = machine.submit()
    for command in (
        CancelJob(job_id=ended),
        HoldJob(job_id=ended),
        HoldJob(job_id=running),
        RequeueJob(job_id=waiting),
        SuspendJob(job_id=waiting),
        ResumeJob(job_id=running),
    ):
        error = refusal(machine, command, ANA)
        assert error.code == "conflict"
        assert error.hint
    assert ask(machine, ReleaseJob(job_id=waiting), ANA) == []
    assert ask(machine, SuspendJob(job_id=running), ANA) == ["JobSuspendRequested"]
    assert ask(machine, ResumeJob(job_id=running), ANA) == ["JobResumeRequested"]
    assert ask(machine, CancelJob(job_id=running), ANA) == ["JobCancelRequested"]
    assert ask(machine, CancelJob(job_id=running), ANA) == []
    assert ask(machine, RequeueJob(job_id=ended), ANA) == ["JobRequeueRequested"]


def test_a_job_that_ends_for_good_is_not_requeued_before_it_has(machine: Machine) -> None:
    lost, back = machine.run(), machine.submit()
    machine.do(TimeLimitReached(at_s=machine.now_s, job_id=lost, attempt=1))
    assert refusal(machine, RequeueJob(job_id=lost), ANA).code == "conflict"
    machine.exit(lost, code=None, signal=15)
    machine.place(back)
    machine.start(back)
    assert ask(machine, RequeueJob(job_id=back), ANA) == ["JobRequeueRequested"]
    assert ask(machine, RequeueJob(job_id=back), ANA) == []


def test_an_ended_job_whose_queue_is_gone_is_not_requeued(machine: Machine) -> None:
    job_id = machine.run()
    machine.exit(job_id)
    policy = make_policy({"others": make_queue()})
    machine.do(PolicyChanged(at_s=machine.now_s, version=1, policy=policy, by="root"))
    error = refusal(machine, RequeueJob(job_id=job_id), ANA)
    assert error.code == "conflict"
    assert "'default' is gone" in error.message


def test_an_ended_job_whose_reservation_is_gone_is_not_requeued(machine: Machine) -> None:
    job_id = machine.run(make_job(reservation="night"))
    machine.exit(job_id)
    assert "'night' is gone" in refusal(machine, RequeueJob(job_id=job_id), ANA).message


def test_an_element_of_a_cancelled_array_is_not_requeued(machine: Machine) -> None:
    ranges = (IndexRange(start=0, stop=2),)
    array = machine.submit(make_job(array=ArraySpec(ranges=ranges)))
    elements = [JobId(f"{array}.{index}") for index in range(2)]
    for index, element in enumerate(elements):
        machine.place(element, first_device=index)
        machine.start(element)
    machine.exit(elements[0])
    assert ask(machine, CancelJob(job_id=array), ANA) == ["JobCancelRequested"]
    assert refusal(machine, RequeueJob(job_id=elements[0]), ANA).code == "conflict"


def test_only_its_owner_lifts_a_cordon_and_admins_lift_those_of_people(machine: Machine) -> None:
    machine.do(NodeCordoned(at_s=machine.now_s, node=N1, cordon=Cordon(owner="health")))
    assert refusal(machine, UncordonNode(node=N1), ADMIN).code == "conflict"
    assert ask(machine, DrainNode(node=N1, reason="fan"), OPERATOR) == ["NodeDrainRequested"]
    other = make_principal("op2", Role.OPERATOR)
    assert refusal(machine, UncordonNode(node=N1), other).code == "conflict"
    (event,) = to_events(machine.cluster, UncordonNode(node=N1), ADMIN, machine.now_s)
    assert event == NodeUncordoned(at_s=machine.now_s, node=N1, owner="user:op")


def test_a_policy_may_not_strand_a_job(machine: Machine) -> None:
    machine.submit()
    other = make_policy({"other": make_queue()})
    error = refusal(machine, SetPolicy(policy=other), ADMIN)
    assert (error.code, error.field) == ("conflict", "queues")
    assert ask(machine, SetPolicy(policy=make_policy(), if_version=0), ADMIN) == ["PolicyChanged"]


def test_tokens_are_made_and_revoked_by_admins(machine: Machine) -> None:
    token = Token(token_id="t1", sha256="00", principal=ANA)
    assert refusal(machine, CreateToken(token=token), OPERATOR).code == "forbidden"
    assert ask(machine, CreateToken(token=token), ADMIN) == [TokenCreated.__name__]
    assert refusal(machine, CreateToken(token=token), ADMIN).code == "conflict"
    assert ask(machine, RevokeToken(token_id="t1"), ADMIN) == ["TokenRevoked"]


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ("launch:job-00001/1/0", "launch of task 0 of attempt 1 done"),
        ("stop:job-00001/2/3", "stop of task 3 of attempt 2 done"),
        ("signal:job-00001/1/0/SIGSTOP/98", "signal SIGSTOP to task 0 of attempt 1 done"),
        ("notify:job-00001/1/failed/0", "call of the address for 'failed' done"),
    ],
)
def test_a_story_says_orders_in_words(order: str, words: str) -> None:
    answer = EffectAnswered(at_s=0.0, effect_id=EffectId(order))
    assert sentence(answer, "job-00001") == words
