"""What goes between the server and the process of its shadow."""

from __future__ import annotations

from typing import Final

import msgspec

from tercio.model.shadow_views import ShadowReport

ORDER_FILE: Final = "policy-shadow.json"
BEGUN_FILE: Final = "policy-shadow.state"
LAG_S: Final = 3600.0


class ShadowOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What runs in shadow: the text of a policy file, and who wanted it when."""

    id: str
    file: str
    source: str
    by: str
    at_s: float
    lag_s: float
    overcommit: bool = False


class ShadowAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the child."""

    report: ShadowReport
    note: str
