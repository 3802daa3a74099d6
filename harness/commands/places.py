"""Where commands read and write by default, and how they say something."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import click

DEFAULT_DB = Path("results/fm.db")
DEFAULT_REPORTS = Path("reports")
DEFAULT_RESULTS = Path("results/RESULTS.md")

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What writing to a redirected standard output may end with; files of ours say so themselves."""


@contextmanager
def while_read() -> Iterator[None]:
    """Write to standard output as long as somebody reads it and there is room for it.

    For a command with an exit code still to give, which `fm gate | head` must not turn into a pass.
    """
    try:
        yield
    except BrokenPipeError:
        drop_output()
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        drop_output()
        say_full(error)


def drop_output(stream: TextIO | None = None) -> None:
    """Write nothing more to a stream, standard output by default, also not what it still holds."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), (stream or sys.stdout).fileno())


def say_full(error: OSError) -> None:
    """Say why standard output took no more."""
    say(f"the output cannot be written ({error.strerror}); free space")


def say(line: str) -> None:
    """Write one line to standard error, as fm."""
    click.echo(f"fm: {line}", err=True)
