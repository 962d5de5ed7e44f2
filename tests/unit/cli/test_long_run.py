"""The collector is as before after a long run, also after one that failed."""

from __future__ import annotations

import gc

import pytest

from tercio.cli.long_run import seldom_collected


def test_the_collector_is_put_back() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    with seldom_collected():
        assert gc.get_threshold()[0] > before[0]
        assert gc.get_freeze_count() > frozen
        assert gc.isenabled()
    assert gc.get_threshold() == before
    with pytest.raises(ValueError, match="broken"), seldom_collected():
        raise ValueError("broken")
    assert gc.get_threshold() == before
