"""`tercio config`."""

from __future__ import annotations

import click
import msgspec

from tercio.cli.output import Column, Listing, Output, machine_text, output_options, show_rows
from tercio.cli.session import Session
from tercio.cli.verbs import Noun, pass_session


class SettingRow(msgspec.Struct, frozen=True, kw_only=True):
    """One setting: dotted key, value, and who set it."""

    key: str
    value: str | int | float | bool | dict[str, str] | None
    origin: str


@click.group(cls=Noun, default="show")
def command() -> None:
    """Show the configuration and where it comes from."""


@command.command("show", examples="tercio config show --origin")
@click.option("--origin", "has_origin", is_flag=True, help="Who set each: flag, environment, file.")
@output_options
@pass_session
def show(session: Session, output: Output, *, has_origin: bool) -> None:
    """Print every setting as this machine reads it now."""
    from tercio.config import load, settings

    config, origins = load(environ=session.environment)
    rows = [
        SettingRow(key=key, value=value, origin=origins[key])  # type: ignore[arg-type]
        for key, value in settings(config)
    ]
    columns: list[Column[SettingRow]] = [
        Column("SETTING", "key", lambda row: row.key),
        Column("VALUE", "value", lambda row: machine_text(row.value) or '""'),
        Column("ORIGIN", "origin", lambda row: row.origin, is_wide=not has_origin),
    ]
    listing = Listing(columns, SettingRow, lambda row: row.key, "no settings")
    show_rows(session, output, listing, [msgspec.Raw(msgspec.json.encode(row)) for row in rows])
