"""Classify a whole log: text in any chunks, one classification out."""

from __future__ import annotations

from tercio.health.finding import Classification, Finding
from tercio.health.incident import IncidentLog
from tercio.health.parse import FindingParser
from tercio.health.table import FaultTable


class Classifier:
    """Reads a log piece by piece. How the text was cut into chunks changes nothing."""

    __slots__ = ("_incidents", "_parser", "_table", "_tail")

    def __init__(self, table: FaultTable, *, driver_branch: int | None = None) -> None:
        self._table = table
        self._parser = FindingParser(table, driver_branch=driver_branch)
        self._incidents = IncidentLog()
        self._tail = ""

    def feed(self, text: str) -> list[Finding]:
        """Take the next piece of the log and return the findings that it completes."""
        *lines, self._tail = (self._tail + text).split("\n")
        found = []
        for line in lines:
            finding = self.feed_line(line)
            if finding is not None:
                found.append(finding)
        return found

    def feed_line(self, line: str) -> Finding | None:
        """Take one whole line, without its line feed."""
        parsed = self._parser.parse(line.rstrip("\r"))
        if parsed is None:
            return None
        finding, repeats = parsed
        return self._incidents.add(finding, repeats=repeats)

    def finish(self) -> Classification:
        """End the log, whose last line may lack its line feed, and return what it said."""
        if self._tail:
            tail, self._tail = self._tail, ""
            self.feed_line(tail)
        return Classification(
            table_date=self._table.date,
            line_count=self._parser.line_count,
            findings=tuple(self._incidents.findings),
            incidents=self._incidents.incidents(),
            uuid_by_pci=dict(self._parser.uuid_by_pci),
        )


def classify(text: str, table: FaultTable, *, driver_branch: int | None = None) -> Classification:
    """Classify a log that is at hand as one text.

    Args:
        text: the log, any mixture of kernel, NCCL and framework lines.
        table: fault table, with the site's overrides if it has any.
        driver_branch: major version of the GPU driver, None where unknown.
    """
    classifier = Classifier(table, driver_branch=driver_branch)
    classifier.feed(text)
    return classifier.finish()
