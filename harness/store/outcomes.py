"""What became of a write, and of a spool file that was taken in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveOutcome:
    """What became of a write.

    Args:
        saved: True when the database has it (also when it had it already).
        spool: the JSONL file that has it instead, None when saved.
        reason: one line: why the database did not take it, and what to do.
    """

    saved: bool
    spool: Path | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOutcome:
    """What a spool file held: lines taken in, lines the database had already, unreadable lines.

    Args:
        kept: where the file is now, None when it was removed.
    """

    imported: int
    known: int
    damaged: int
    kept: Path | None = None
