"""The built wheel and sdist in a fresh environment: small, whole, working, without a compiler."""

from __future__ import annotations

from pathlib import Path

import pytest

import tercio

ROOT = Path(__file__).parents[2]
MB_MAX = 140


@pytest.mark.full
@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_a_wheel_and_an_sdist_install_small_and_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from bench.install import measure

    found = measure()
    assert found.missing == []
    assert tercio.__version__ in found.wheel_says
    assert found.sdist_says == found.wheel_says
    assert found.grown_bytes < MB_MAX * 1e6
