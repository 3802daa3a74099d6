"""The statements that read rows; every result has a fixed order."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from typing import TypeVar

from harness.store.codec import column_names, decode, decoder
from harness.store.loaded import (
    AcceptPoint,
    BlockRow,
    CellTotals,
    FailedReply,
    FigureRow,
    ReplyGroup,
    RunData,
    RunFilter,
    RunNames,
)
from harness.store.partings import parted_cells
from harness.store.record_form import TurnRow
from harness.store.replies import Reply
from harness.store.rows import (
    AcceptRow,
    CellRow,
    ConditionRow,
    DivergenceRow,
    GateRow,
    LawRow,
    ModelRow,
    PromotionRow,
    RequestRow,
    RunPlan,
    RunRow,
    TrialRow,
    WorkloadRow,
)

T = TypeVar("T")

_RUNS = (
    "SELECT r.*, e.content FROM runs AS r JOIN environments AS e ON e.content_hash = environment"
)
_NEWEST_FIRST = "ORDER BY created_at DESC, run_id DESC"
_OF_RUN = "SELECT trial_id FROM trials WHERE run_id = ?"
_NAMES = "model, workload, cell"


def newest_runs(raw: sqlite3.Connection, limit: int, wanted: RunFilter) -> tuple[RunRow, ...]:
    """Return the newest runs of those that are wanted, newest first."""
    query = f"""
        {_RUNS}
        WHERE (:tag = '' OR instr(lower(tag), lower(:tag)) > 0)
        AND (:status = '' OR status = :status)
        AND (:model = '' OR EXISTS (
            SELECT 1 FROM trials AS t JOIN models AS m ON m.key = t.model
            WHERE t.run_id = r.run_id AND m.name = :model))
        {_NEWEST_FIRST} LIMIT :limit
    """
    values = {"tag": wanted.tag, "status": wanted.status, "model": wanted.model, "limit": limit}
    return tuple(map(_run, raw.execute(query, values)))


def trial_counts(raw: sqlite3.Connection, run_id: str) -> dict[str, int]:
    """Return how many trials of a run there are, by status."""
    query = "SELECT status, COUNT(*) FROM trials WHERE run_id = ? GROUP BY status ORDER BY status"
    return {row[0]: row[1] for row in raw.execute(query, (run_id,))}


def run_names(raw: sqlite3.Connection, run_id: str) -> RunNames:
    """Return the models, workloads and cells of a run, by name."""
    found = [
        tuple(
            row[0]
            for row in raw.execute(
                f"SELECT DISTINCT {column} FROM v_trial WHERE run_id = ? ORDER BY 1", (run_id,)
            )
        )
        for column in ("model", "workload", "cell")
    ]
    return RunNames(*found)


def views(raw: sqlite3.Connection) -> tuple[str, ...]:
    """Return the names of all views."""
    query = "SELECT name FROM sqlite_master WHERE type = 'view' ORDER BY name"
    return tuple(row[0] for row in raw.execute(query))


def view_rows(raw: sqlite3.Connection, view: str, run_id: str) -> sqlite3.Cursor:
    """Return the rows of a view, of one run or of all ("" as id), in a fixed order.

    Its first columns say which row it is; eight are enough for every view.
    """
    columns = len(raw.execute(f"SELECT * FROM {view} LIMIT 0").description)
    order = ", ".join(map(str, range(1, min(columns, 8) + 1)))
    where, values = ("WHERE run_id = ?", (run_id,)) if run_id else ("", ())
    return raw.execute(f"SELECT * FROM {view} {where} ORDER BY {order}", values)


def runs_beginning_with(raw: sqlite3.Connection, prefix: str) -> tuple[RunRow, ...]:
    """Return the runs whose id begins so, newest first."""
    query = f"{_RUNS} WHERE substr(run_id, 1, ?) = ? {_NEWEST_FIRST}"
    return tuple(map(_run, raw.execute(query, (len(prefix), prefix))))


def pending_trials(raw: sqlite3.Connection, run_id: str) -> tuple[TrialRow, ...]:
    """Return the trials of a run that still have to run, in the order of the plan."""
    query = """
        SELECT * FROM trials WHERE run_id = ? AND status = 'pending'
        ORDER BY block, order_in_block, trial_id
    """
    return _rows(raw, TrialRow, query, run_id)


def run_data(raw: sqlite3.Connection, run_id: str) -> RunData | None:
    """Return everything about one run, None when there is no such run."""
    data = report_data(raw, run_id)
    if data is None:
        return None
    return replace(
        data,
        requests=_of_trials(raw, RequestRow, "requests", "position", run_id),
        accepts=_of_trials(raw, AcceptRow, "accept_pos", "pos", run_id),
    )


def replies(raw: sqlite3.Connection, trial: TrialRow) -> tuple[Reply, ...]:
    """Return the measured replies of a trial by position; none where it is not as it was read."""
    query = f"""
        SELECT {", ".join(column_names(Reply))} FROM requests AS r
        WHERE trial_id = ? AND phase = 'measured' AND EXISTS (
            SELECT 1 FROM trials AS t WHERE t.trial_id = r.trial_id AND t.status = ?
            AND json_array_length(t.failed_before) = ?)
        ORDER BY position
    """
    return _rows(raw, Reply, query, trial.trial_id, trial.status, trial.attempt)


def requests(raw: sqlite3.Connection, trial_id: str) -> tuple[RequestRow, ...]:
    """Return all requests of a trial, by position."""
    query = "SELECT * FROM requests WHERE trial_id = ? ORDER BY position"
    return _rows(raw, RequestRow, query, trial_id)


def turns(raw: sqlite3.Connection, run_id: str) -> tuple[TurnRow, ...]:
    """Return the turns of a run's trials that are not through, those of a trial in order."""
    query = """
        SELECT turns.* FROM turns JOIN trials USING (trial_id)
        WHERE run_id = ? ORDER BY trial_id, attempt, turn
    """
    return _rows(raw, TurnRow, query, run_id)


def plan(raw: sqlite3.Connection, run_id: str) -> RunPlan | None:
    """Return what a run was planned as, its trials as they are now; None for no such run."""
    found = raw.execute(f"{_RUNS} WHERE run_id = ?", (run_id,)).fetchone()
    if found is None:
        return None
    return RunPlan(
        run=_run(found),
        models=_named(raw, ModelRow, "models", "key", "model", run_id),
        workloads=_named(raw, WorkloadRow, "workloads", "content_hash", "workload", run_id),
        cells=_named(raw, CellRow, "cells", "content_hash", "cell", run_id),
        trials=_rows(
            raw,
            TrialRow,
            "SELECT * FROM trials WHERE run_id = ? ORDER BY block, order_in_block, trial_id",
            run_id,
        ),
    )


def report_data(raw: sqlite3.Connection, run_id: str) -> RunData | None:
    """Return all about one run but its single requests, None when there is no such run."""
    planned = plan(raw, run_id)
    if planned is None:
        return None
    data = RunData(
        run=planned.run,
        models=planned.models,
        workloads=planned.workloads,
        cells=planned.cells,
        trials=planned.trials,
        requests=(),
        accepts=(),
        divergences=_of_trials(
            raw, DivergenceRow, "divergences", "prompt_id, reference, position", run_id
        ),
        laws=_of_trials(raw, LawRow, "laws", "position", run_id),
        conditions=_of_run(raw, ConditionRow, "conditions", "sampled_at, phase", run_id),
        gates=_of_run(raw, GateRow, "gates", f"name, {_NAMES}", run_id),
        figures=_of_run(raw, FigureRow, "v_figure", f"{_NAMES}, figure", run_id),
        blocks=_of_run(raw, BlockRow, "v_composition", f"{_NAMES}, block", run_id),
        totals=_of_run(raw, CellTotals, "v_cell", _NAMES, run_id),
        accept_curve=_of_run(raw, AcceptPoint, "v_accept_curve", f"{_NAMES}, pos", run_id),
        replies=_of_run(
            raw,
            ReplyGroup,
            "v_replies",
            f"{_NAMES}, status, lane_taken, lane_reason, conformance",
            run_id,
        ),
        failed=_of_run(raw, FailedReply, "v_failed_reply", "trial_id, position", run_id),
    )
    return replace(data, parted=parted_cells(raw, data))


def promotions(raw: sqlite3.Connection, run_id: str) -> tuple[PromotionRow, ...]:
    """Return the promotions of a run, oldest first."""
    return _of_run(raw, PromotionRow, "promotions", "promoted_at, promotion_id", run_id)


def problems(raw: sqlite3.Connection) -> tuple[str, ...]:
    """Return what SQLite's own checks find wrong."""
    found = [row[0] for row in raw.execute("PRAGMA integrity_check")]
    broken = [f"{row[0]} row {row[1]} refers to no {row[2]}" for row in _foreign_keys(raw)]
    return tuple(text for text in found if text != "ok") + tuple(broken)


def _foreign_keys(raw: sqlite3.Connection) -> list[sqlite3.Row]:
    return raw.execute("PRAGMA foreign_key_check").fetchall()


def _run(row: sqlite3.Row) -> RunRow:
    return decode(RunRow, {**dict(row), "environment": row["content"]})


def _rows(raw: sqlite3.Connection, kind: type[T], query: str, *values: str | int) -> tuple[T, ...]:
    rows = raw.execute(query, values)
    return tuple(map(decoder(kind, [column[0] for column in rows.description]), rows))


def _named(
    raw: sqlite3.Connection, kind: type[T], table: str, key: str, column: str, run_id: str
) -> tuple[T, ...]:
    query = f"""
        SELECT * FROM {table} WHERE {key} IN (SELECT {column} FROM trials WHERE run_id = ?)
        ORDER BY name, {key}
    """
    return _rows(raw, kind, query, run_id)


def _of_trials(
    raw: sqlite3.Connection, kind: type[T], table: str, order: str, run_id: str
) -> tuple[T, ...]:
    query = f"SELECT * FROM {table} WHERE trial_id IN ({_OF_RUN}) ORDER BY trial_id, {order}"
    return _rows(raw, kind, query, run_id)


def _of_run(
    raw: sqlite3.Connection, kind: type[T], table: str, order: str, run_id: str
) -> tuple[T, ...]:
    return _rows(raw, kind, f"SELECT * FROM {table} WHERE run_id = ? ORDER BY {order}", run_id)
