"""What the tests of several directories share."""

from __future__ import annotations

import subprocess
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A busy machine makes examples slow, and that is no fault.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put into the report of a failed test what its server and its cluster say at that moment.

    Any fixture that has `told_at_failure` is asked, once; what cannot answer any more says why.
    """
    report = yield
    if report.failed and report.when in ("setup", "call", "teardown"):
        fixtures: dict[str, Any] = getattr(item, "funcargs", {})
        asked = {id(fixture): (name, fixture) for name, fixture in fixtures.items()}
        for name, fixture in asked.values():
            if hasattr(fixture, "told_at_failure"):
                try:
                    told = fixture.told_at_failure()
                except Exception as failure:
                    told = f"cannot say: {failure!r}"
                report.sections.append((f"what {name} says", told))
    del call
    return report


@pytest.fixture(scope="session")
def mortal() -> Iterator[subprocess.Popen[str]]:
    """The process from which servers that kill themselves are forked."""
    from e2e.mortal import started

    with started() as child:
        yield child
