"""`tercio version`."""

from __future__ import annotations

import click

from tercio import __version__
from tercio.cli.verbs import Verb


@click.command(cls=Verb, examples="tercio version")
def command() -> None:
    """Print the version."""
    click.echo(f"tercio {__version__}")
