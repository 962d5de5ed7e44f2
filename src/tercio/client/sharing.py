"""Requests about sharing: the policy, topology, reservations, and how estimates came out."""

from __future__ import annotations

from typing import Any

from tercio.client.transport import Query, Transport, quote
from tercio.model.health_views import PricesView
from tercio.model.sharing_views import (
    GapList,
    OwnerLimitList,
    PolicyHistory,
    PolicyPlanView,
    ReservationList,
    ReservationView,
    StartAccuracy,
    TopologyView,
)
from tercio.model.views import PolicyView


class SharingRequests:
    """A part of `Client`."""

    _transport: Transport

    def policy(self, *, version: int | None = None) -> PolicyView:
        """Return the policy in force, or an earlier version of it."""
        return self._transport.call("GET", "/v1/policy", PolicyView, query={"version": version})

    def set_policy(
        self, file: str, *, if_version: int, overcommit: bool = False, source: str | None = None
    ) -> PolicyView:
        """Put the policy of a policy file in force, if `if_version` still is.

        `overcommit` allows guarantees above what the cluster has; `source` names the file in
        errors.
        """
        headers = {"If-Match": str(if_version)}
        body = {"file": file, "overcommit": overcommit, "source": source}
        return self._transport.call("PUT", "/v1/policy", PolicyView, body=body, headers=headers)

    def policy_plan(
        self, file: str, *, overcommit: bool = False, source: str | None = None
    ) -> PolicyPlanView:
        """Say what a policy would do to the jobs there are; changes nothing."""
        body = {"file": file, "overcommit": overcommit, "source": source}
        return self._transport.call("POST", "/v1/policy/plan", PolicyPlanView, body=body)

    def policy_history(
        self, *, limit: int | None = None, after: str | None = None
    ) -> PolicyHistory:
        """Return a page of the versions of the policy, newest first."""
        query: Query = {"limit": limit, "after": after}
        return self._transport.call("GET", "/v1/policy/history", PolicyHistory, query=query)

    def prices(self) -> PricesView:
        """Return what power costs from now on, and until when that is known."""
        return self._transport.call("GET", "/v1/prices", PricesView)

    def send_prices(self, file: str, *, source: str | None = None) -> PricesView:
        """Say what power costs, as the text of a CSV; `source` names the file in errors."""
        body = {"file": file, "source": source}
        return self._transport.call("PUT", "/v1/prices", PricesView, body=body)

    def limits(self) -> OwnerLimitList:
        """Return limits of users and tenants, and what counts against them."""
        return self._transport.call("GET", "/v1/limits", OwnerLimitList)

    def start_accuracy(self) -> StartAccuracy:
        """Return how the last start estimates came out."""
        return self._transport.call("GET", "/v1/start-accuracy", StartAccuracy)

    def topology(self, *, devices: int | None = None, has_nodes: bool = False) -> TopologyView:
        """Return free capacity by domain and the largest gangs of tasks of `devices` devices."""
        query: Query = {"devices": devices, "nodes": has_nodes or None}
        return self._transport.call("GET", "/v1/topology", TopologyView, query=query)

    def reservations(
        self, *, limit: int | None = None, after: str | None = None
    ) -> ReservationList:
        """Return a page of reservations."""
        query: Query = {"limit": limit, "after": after}
        return self._transport.call("GET", "/v1/reservations", ReservationList, query=query)

    def gaps(
        self, *, site: str | None = None, limit: int | None = None, after: str | None = None
    ) -> GapList:
        """Return a page of the devices that are free until something kept begins."""
        query: Query = {"site": site, "limit": limit, "after": after}
        return self._transport.call("GET", "/v1/gaps", GapList, query=query)

    def add_reservation(self, name: str, **fields: Any) -> ReservationView:
        """Keep capacity for a queue or a user; fields as in the body of the API."""
        body = {"name": name, **fields}
        return self._transport.call("POST", "/v1/reservations", ReservationView, body=body)

    def remove_reservation(self, name: str) -> None:
        """End a reservation."""
        self._transport.raw("DELETE", f"/v1/reservations/{quote(name)}")
