"""What the tests of several directories share."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# A busy machine makes examples slow, and that is no fault.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(scope="session")
def mortal() -> Iterator[subprocess.Popen[str]]:
    """The process from which servers that kill themselves are forked."""
    from e2e.mortal import started

    with started() as child:
        yield child
