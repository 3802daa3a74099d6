"""Where commands read and write by default, and how they say something."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

DEFAULT_DB = Path("results/fm.db")
DEFAULT_REPORTS = Path("reports")
DEFAULT_RESULTS = Path("results/RESULTS.md")


@contextmanager
def while_read() -> Iterator[None]:
    """Write to standard output as long as somebody reads it.

    For a command with an exit code still to give, which `fm gate | head` must not turn into a pass.
    """
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(line: str) -> None:
    """Write one line to standard error, as fm."""
    click.echo(f"fm: {line}", err=True)
