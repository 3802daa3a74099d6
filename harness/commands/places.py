"""Where commands read and write by default, and how they say something."""

from __future__ import annotations

from pathlib import Path

import click

DEFAULT_DB = Path("results/fm.db")
DEFAULT_REPORTS = Path("reports")
DEFAULT_RESULTS = Path("results/RESULTS.md")


def say(line: str) -> None:
    """Write one line to standard error, as fm."""
    click.echo(f"fm: {line}", err=True)
