"""What an exit code of a run means, in a word, and the dated file a report is written to."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from engine.errors import FmError, SettingError
from harness.exit_codes import WORDS
from harness.store.rows import RunRow


class ReportError(FmError):
    """A report cannot be written; the text names the file and a remedy."""


def outcome_word(exit_code: int) -> str:
    """Return the word for an exit code of a run."""
    return WORDS.get(exit_code, f"EXIT {exit_code}")


def report_name(run: RunRow, ending: str) -> str:
    """Return the dated name of a run's report, e.g. `2026-03-04-050607-01ABC...XYZ.md`."""
    date, _, time = run.created_at.partition("T")
    return f"{date}-{time[:8].replace(':', '')}-{run.run_id}.{ending}"


def check_folder(folder: Path, flag: str) -> None:
    """Raise SettingError when a folder cannot be written; the text names the flag for another."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise SettingError(
            f"{folder} cannot be written ({error.strerror}); give another place with {flag}"
        ) from error


def write_report(path: Path, text: str) -> None:
    """Write a report as UTF-8 with plain line ends, whole or not at all; the folder is made.

    Raises:
        ReportError: the folder or the file cannot be written.
    """
    write_pieces(path, [text])


def write_pieces(path: Path, pieces: Iterable[str]) -> None:
    """Write a text that comes piece by piece, as `write_report` does."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            for piece in pieces:
                file.write(piece.encode("utf-8", "backslashreplace"))
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise ReportError(
            f"{path} cannot be written ({error.strerror}); allow it, or name another place with "
            "--out, -o or --to"
        ) from error
