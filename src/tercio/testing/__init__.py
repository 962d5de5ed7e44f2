"""Factories for tests, ours and those of people who extend Tercio."""

from tercio.testing.factories import (
    make_job,
    make_node,
    make_nodes,
    make_policy,
    make_principal,
    make_queue,
    make_request,
)

__all__ = [
    "make_job",
    "make_node",
    "make_nodes",
    "make_policy",
    "make_principal",
    "make_queue",
    "make_request",
]
