"""A site may disagree with single codes, and is told when it names one that does not exist."""

import pytest

from tercio.errors import UserError
from tercio.health.classify import classify
from tercio.health.finding import Action, Severity
from tercio.health.table import FaultTable, parse_overrides

LINE = "NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked"


def test_override_changes_one_code_and_names_its_reason(table: FaultTable) -> None:
    site = table.with_overrides(
        parse_overrides('[[fault]]\nclass="xid"\ncode="63"\naction="observe"\nreason="we patch"\n')
    )
    [finding] = classify(LINE, site).findings
    assert (finding.action, finding.severity) == (Action.OBSERVE, Severity.WARNING)
    row = site.row("xid", "63")
    assert row is not None
    assert row.source == "site: we patch"
    assert classify(LINE, table).findings[0].action is Action.RESET_GPU_WHEN_IDLE


def test_override_wins_over_what_the_line_says(table: FaultTable) -> None:
    site = table.with_overrides(
        parse_overrides('[[fault]]\nclass="xid"\ncode="94"\naction="observe"\nreason="x"\n')
    )
    [finding] = classify("NVRM: Xid (PCI:0000:10:1c): 94, Contained. RST: Yes", site).findings
    assert finding.action is Action.OBSERVE


def test_override_of_the_unknown_code_applies_to_every_unknown_code(table: FaultTable) -> None:
    site = table.with_overrides(
        parse_overrides('[[fault]]\nclass="xid"\ncode="other"\naction="observe"\nreason="x"\n')
    )
    [finding] = classify("NVRM: Xid (PCI:0000:10:1c): 999, x", site).findings
    assert (finding.code, finding.action) == ("999", Action.OBSERVE)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[[fault]]\nclass="xid"\ncode="1790"\naction="observe"\nreason="x"\n', "xid 1790"),
        ('[[fault]]\nclass="xid"\ncode="79"\naction="explode"\nreason="x"\n', "explode"),
        ('[[fault]]\nclass="xid"\ncode="79"\naction="observe"\n', "reason"),
        ('[[fault]]\nclass="xid"\ncode="79"\nactoin="observe"\nreason="x"\n', "actoin"),
        ("not toml", "TOML"),
    ],
)
def test_bad_override_names_what_is_wrong(table: FaultTable, text: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        table.with_overrides(parse_overrides(text))
    assert caught.value.field
