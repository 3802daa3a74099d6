"""What cells took in past runs: the statements behind the time that a plan is said to need."""

from __future__ import annotations

import sqlite3
from collections.abc import Container
from dataclasses import dataclass

_DONE = """
    SELECT t.trial_id, m.name AS model, w.name AS workload, c.name AS cell, c.max_rows, t.tokens,
        COALESCE(
            t.turns_s, 86400.0 * (julianday(t.finished_at) - julianday(t.started_at))
        ) AS seconds
    FROM trials AS t
    JOIN models AS m ON m.key = t.model
    JOIN workloads AS w ON w.content_hash = t.workload
    JOIN cells AS c ON c.content_hash = t.cell
    WHERE t.run_id = ? AND t.status = 'done' AND t.started_at IS NOT NULL
"""
_TRIALS = f"""
    SELECT model, workload, cell, max_rows, COUNT(*) AS trials, SUM(seconds) AS seconds,
        SUM(tokens) AS tokens
    FROM ({_DONE}) GROUP BY model, workload, cell, max_rows ORDER BY model, workload, cell
"""
_LENGTHS = f"""
    SELECT r.completion_tokens AS tokens, r.finish_reason = 'length' AS is_cut, COUNT(*) AS count
    FROM ({_DONE}) AS d JOIN requests AS r ON r.trial_id = d.trial_id
    WHERE d.model = ? AND d.workload = ? AND d.cell = ?
        AND r.phase = 'measured' AND r.status = 'ok'
        AND r.completion_tokens IS NOT NULL AND r.finish_reason IS NOT NULL
    GROUP BY 1, 2 ORDER BY 1, 2
"""

Names = tuple[str, str, str]
"""Of a model, a workload and a cell."""


@dataclass(frozen=True, slots=True)
class Length:
    """Replies of one length; `is_cut` where their budget ended them."""

    tokens: int
    is_cut: bool
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PastCell:
    """What one cell took in one run.

    Args:
        seconds: of its finished trials together, warm-up and replays included.
        tokens: what its measured requests emitted.
    """

    model: str
    workload: str
    cell: str
    max_rows: int
    trials: int
    seconds: float
    tokens: int
    lengths: tuple[Length, ...]

    @property
    def names(self) -> Names:
        """Where it belongs."""
        return (self.model, self.workload, self.cell)


def past_cells(raw: sqlite3.Connection, run_id: str, known: Container[Names]) -> list[PastCell]:
    """Return what the cells of a run took, but for those that are known from a newer one."""
    rows = raw.execute(_TRIALS, (run_id,)).fetchall()
    return [
        PastCell(
            model=row["model"],
            workload=row["workload"],
            cell=row["cell"],
            max_rows=row["max_rows"],
            trials=row["trials"],
            seconds=row["seconds"] or 0.0,
            tokens=row["tokens"] or 0,
            lengths=tuple(
                Length(found["tokens"], bool(found["is_cut"]), found["count"])
                for found in raw.execute(_LENGTHS, (run_id, *_names(row)))
            ),
        )
        for row in rows
        if _names(row) not in known
    ]


def _names(row: sqlite3.Row) -> Names:
    return (row["model"], row["workload"], row["cell"])
