"""docs/operations.md says what the code does: metrics, settings, exit codes, roles."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client import Metric

from tercio.cli.errors import MEANINGS
from tercio.config import load
from tercio.core.cluster import Cluster
from tercio.model.identity import Role
from tercio.runtime.metrics import Metrics

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def shown_name(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def test_every_metric_is_listed_and_no_other() -> None:
    metrics = Metrics()
    metrics.watch(cluster=Cluster, inbox_depth=lambda: 0, in_flight=lambda: 0)
    told = set(re.findall(r"`(tercio_[a-z_]+)", section("Metrics").split("Worth an alert")[0]))
    assert told == {shown_name(family) for family in metrics.registry.collect()}


def test_the_settings_shown_are_settings(tmp_path: Path) -> None:
    for number, text in enumerate(blocks("toml")):
        path = tmp_path / f"{number}.toml"
        path.write_text(text, encoding="utf-8")
        _, origins = load(flags={}, environ={}, paths=(path,))
        assert str(path) in " ".join(origins.values())
    _, origins = load(flags={}, environ={}, paths=())
    named = set(re.findall(r"`((?:server|local|store|log)\.[a-z_]+)`", PAGE))
    named -= {"server.json", "server.log"}
    assert named
    assert named <= set(origins)


def test_the_exit_codes_are_those_of_the_command_line() -> None:
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", section("Exit codes"), re.MULTILINE)
    assert [(int(code), text.replace("`", "")) for code, text in rows] == [
        (int(code), text) for code, text in MEANINGS.items()
    ]


def test_every_role_is_told() -> None:
    rows = re.findall(r"^\| (\w+) \| ", section("Tokens and roles"), re.MULTILINE)
    assert rows[1:] == [role.value for role in Role]
