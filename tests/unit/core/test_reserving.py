"""Reservations: who may make one, what makes no sense, and that windows come by themselves."""

from __future__ import annotations

import pytest

from tercio.core.cluster import Cluster
from tercio.core.commands import to_events
from tercio.core.reserving import overbooked
from tercio.core.story import sentence
from tercio.model.commands import AddReservation, RemoveReservation, SetPolicy, SubmitJob
from tercio.model.events import (
    ReservationAdded,
    ReservationRemoved,
)
from tercio.model.ids import QueuePath
from tercio.model.reservation import Reservation
from tercio.testing import make_job, make_policy, make_queue

from .site import ADMIN, ANA, OPERATOR, Site


def reservation(**fields: object) -> Reservation:
    known = {
        "name": "kept", "queue": "default", "devices": 8, "type": "H100",
        "from_s": 2000.0, "duration_s": 100.0,
    }  # fmt: skip
    return Reservation(**{**known, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"queue": None}, "invalid", "one queue or for one user"),
        ({"user": "ana"}, "invalid", "one queue or for one user"),
        ({"queue": "defalt"}, "not_found", "no queue 'defalt'"),
        ({"duration_s": 0.0}, "invalid", "a window takes time"),
        ({"every_s": 50.0}, "invalid", "overlap"),
        ({"from_s": 1.0}, "invalid", "over already"),
        ({"shape": {"node": 1}}, "invalid", "by count or by shape"),
        ({"devices": 0}, "invalid", "by count or by shape"),
        ({"devices": 33}, "never_fits", "33 H100 are more than the cluster's 32"),
        ({"type": "B200"}, "never_fits", "no node has B200"),
        ({"devices": 0, "shape": {"rak": 1}}, "invalid", "'rak' is no level"),
        ({"devices": 0, "shape": {"rack": 3}}, "never_fits", "3 x rack: the cluster has 2"),
        ({"devices": 0, "shape": {"node": 0}}, "never_fits", "0 x node"),
    ],
)
def test_a_reservation_that_makes_no_sense_is_refused(fields, code, words):
    error = Site().refused(AddReservation(reservation=reservation(**fields)), OPERATOR)
    assert error.code == code
    assert words in error.message
    assert error.hint


@pytest.mark.parametrize(
    ("others", "wanted", "words"),
    [
        ([], {"devices": 32}, None),
        ([{"devices": 24}], {}, None),
        ([{"devices": 25}], {}, "ask for 33 H100 and the cluster has 32; open with it: r0"),
        ([{"devices": 28, "type": None}], {}, None),
        ([{"devices": 29, "type": None}], {}, "37 devices and the cluster has 36"),
        ([{"devices": 32, "from_s": 2100.0}], {}, None),  # it opens when this one ends
        ([{"devices": 32, "from_s": 2050.0}], {}, "from 1970-01-01T00:34:10"),
        # Two that follow one another are never open together.
        ([{"devices": 20, "duration_s": 40.0}, {"devices": 20, "from_s": 2050.0}], {}, None),
        ([{"devices": 0, "shape": {"node": 2}}], {"devices": 16}, None),
        ([{"devices": 0, "shape": {"node": 3}}], {"devices": 16}, "ask for 40 H100"),
        ([{"devices": 30, "from_s": 5000.0}], {"every_s": 1000.0}, "ask for 38 H100"),
        ([{"devices": 0, "type": None, "queue": None, "nodes": ("n1",)}], {"devices": 25},
         "ask for 25 H100 and the cluster has 24"),
    ],
)  # fmt: skip
def test_reservations_that_together_ask_for_more_than_there_is_are_told(others, wanted, words):
    site = Site()
    for at, fields in enumerate(others):
        site.do(AddReservation(reservation=reservation(name=f"r{at}", **fields)), OPERATOR)
    own = reservation(**wanted)
    site.do(AddReservation(reservation=own), OPERATOR)
    warning = overbooked(site.cluster, own, site.now_s)
    assert warning is None if words is None else words in warning


def test_reservations_are_made_and_removed_by_operators_and_survive_a_restart():
    site = Site()
    add = AddReservation(reservation=reservation())
    assert site.refused(add, ANA).code == "forbidden"
    (event, *_) = site.do(add, OPERATOR)
    assert isinstance(event, ReservationAdded)
    assert "reservation kept for default added by op" in sentence(event, "x")
    assert site.refused(add, OPERATOR).code == "conflict"
    again = Cluster.from_image(site.cluster.image())
    assert again.reservations == site.cluster.reservations == {"kept": reservation()}
    assert again.state_hash() == site.cluster.state_hash()
    removed = site.do(RemoveReservation(name="kept"), OPERATOR)
    assert isinstance(removed[0], ReservationRemoved)
    assert "reservation kept removed by op" in sentence(removed[0], "x")
    assert not site.cluster.reservations
    missing = site.refused(RemoveReservation(name="kept"), OPERATOR)
    assert missing.code == "not_found"


def test_a_queue_that_a_reservation_is_for_cannot_go():
    site = Site(make_policy({"a": make_queue(), "b": make_queue()}))
    site.do(AddReservation(reservation=reservation(queue="b")), OPERATOR)
    error = site.refused(SetPolicy(policy=make_policy({"a": make_queue()})), ADMIN)
    assert "reservation kept is for it" in error.message


def test_a_job_may_name_a_reservation_of_its_holder_only():
    site = Site(make_policy({"a": make_queue(), "b": make_queue()}))
    unknown = SubmitJob(spec=make_job(reservation="kept", queue="a"))
    assert site.refused(unknown).code == "not_found"
    site.do(AddReservation(reservation=reservation(queue="b")), OPERATOR)
    assert site.refused(unknown).code == "forbidden"
    assert to_events(site.cluster, unknown, OPERATOR, site.now_s)
    inside = SubmitJob(spec=make_job(reservation="kept", queue="b"))
    assert to_events(site.cluster, inside, ANA, site.now_s)


def test_a_window_opens_and_closes_by_itself():
    site = Site(make_policy({"a": make_queue(), "b": make_queue()}))
    kept = reservation(queue="b", devices=32, from_s=site.now_s + 10, duration_s=10.0)
    site.do(AddReservation(reservation=kept), OPERATOR)
    waits = site.submit(queue="a")
    step = site.driver.step([], site.now_s)
    assert site.driver.decisions[waits].reason.value == "Reserved"
    assert step.wake_at_s == kept.from_s
    at_s = kept.from_s + kept.duration_s
    step = site.driver.step([], at_s)
    assert [type(entry.event).__name__ for entry in step.entries][:1] == ["JobPlaced"]


def test_paths_are_queue_paths():
    assert reservation().is_held_by(QueuePath("default"), "anyone")
