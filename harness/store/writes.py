"""The statements that write rows; each function runs inside a transaction of the caller."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from harness.store.codec import Column, column_names, encode, to_json
from harness.store.connection import StoreError
from harness.store.record_form import TurnRow
from harness.store.rows import (
    AcceptRow,
    ComparisonRow,
    ConditionRow,
    DivergenceRow,
    GateRow,
    LawRow,
    PromotionRow,
    RequestRow,
    RunPlan,
    RunRow,
    TrialRow,
    content_hash,
)

_TRIAL_PLAN = frozenset(
    {"trial_id", "run_id", "block", "order_in_block", "model", "workload", "cell"}
)
"""Columns that the plan decides; a finished trial does not change them."""

_IS_BEHIND = """
    trial_id = :trial_id AND (
        status = 'pending' AND json_array_length(failed_before) <= :attempt
        OR status = 'failed' AND json_array_length(failed_before) < :attempt
    )
"""
"""A trial that has not come as far as a record of this attempt."""


def insert_plan(raw: sqlite3.Connection, plan: RunPlan) -> None:
    """Write a run, what it refers to, and its trials."""
    _insert_run(raw, plan.run)
    for model in plan.models:
        _insert(raw, "models", {"key": model.key, **encode(model)}, "OR IGNORE")
    for workload in plan.workloads:
        _insert(raw, "workloads", encode(workload), "OR IGNORE")
    for cell in plan.cells:
        _insert(raw, "cells", encode(cell), "OR IGNORE")
    for trial in plan.trials:
        _insert(raw, "trials", encode(trial))


def reopen_run(raw: sqlite3.Connection, run_id: str) -> None:
    """Set a run to running: its earlier end and verdict were of what it had then."""
    columns = dict.fromkeys(("exit_code", "quotable", "finished_at"))
    columns |= {"status": "running", "unquotable_reasons": to_json([])}
    finish_run(raw, run_id, columns)
    for table in ("gates", "comparisons"):
        raw.execute(f"DELETE FROM {table} WHERE run_id = ?", (run_id,))


def finish_run(raw: sqlite3.Connection, run_id: str, columns: Mapping[str, Column]) -> None:
    """Write how a run ended."""
    _update(raw, "runs", columns, "run_id = :run_id", {"run_id": run_id})


def write_trial(raw: sqlite3.Connection, content: Mapping[str, Any]) -> bool:
    """Turn a pending trial into a finished one; False when it was finished before.

    A later attempt takes the place of one that failed, with all its requests.

    Args:
        content: `trial`, `requests` and `accepts` as column values.

    Raises:
        StoreError: the plan of this database has no such trial.
    """
    trial = _columns(TrialRow, content["trial"])
    results = {name: value for name, value in trial.items() if name not in _TRIAL_PLAN}
    keys = {
        "trial_id": trial["trial_id"],
        "attempt": len(json.loads(trial.get("failed_before", "[]"))),
    }
    if not _update(raw, "trials", results, _IS_BEHIND, keys):
        _require_trial(raw, trial)
        return False
    for table in ("requests", "accept_pos", "turns"):
        raw.execute(f"DELETE FROM {table} WHERE trial_id = :trial_id", keys)
    for request in content["requests"]:
        _insert(raw, "requests", _columns(RequestRow, request))
    for accept in content["accepts"]:
        _insert(raw, "accept_pos", _columns(AcceptRow, accept))
    return True


def write_turn(raw: sqlite3.Connection, content: Mapping[str, Any]) -> bool:
    """Keep a turn of a trial that is not through, in place of one elsewhere; False when it is.

    Raises:
        StoreError: the plan of this database has no such trial.
    """
    turn = _columns(TurnRow, content)
    if raw.execute(f"SELECT 1 FROM trials WHERE {_IS_BEHIND}", turn).fetchone() is None:
        _require_trial(raw, turn)
        return False
    return _insert(raw, "turns", turn, "OR REPLACE")


def write_condition(raw: sqlite3.Connection, content: Mapping[str, Any]) -> bool:
    """Store one sample of the machine; False when it is there already."""
    return _insert(raw, "conditions", _columns(ConditionRow, content), "OR IGNORE")


def write_divergence(raw: sqlite3.Connection, content: Mapping[str, Any]) -> bool:
    """Store one judged divergence, in place of an earlier judgement."""
    return _insert(raw, "divergences", _columns(DivergenceRow, content), "OR REPLACE")


def write_law(raw: sqlite3.Connection, content: Mapping[str, Any]) -> bool:
    """Store what one reply's draws say, in place of an earlier judgement."""
    return _insert(raw, "laws", _columns(LawRow, content), "OR REPLACE")


def replace_gates(raw: sqlite3.Connection, run_id: str, rows: Iterable[GateRow]) -> None:
    """Store the gates of a run in place of earlier ones."""
    raw.execute("DELETE FROM gates WHERE run_id = ?", (run_id,))
    for row in rows:
        _insert(raw, "gates", encode(row))


def replace_comparisons(
    raw: sqlite3.Connection, run_id: str, rows: Iterable[ComparisonRow]
) -> None:
    """Store the comparisons of a run in place of earlier ones."""
    raw.execute("DELETE FROM comparisons WHERE run_id = ?", (run_id,))
    for row in rows:
        _insert(raw, "comparisons", encode(row))


def insert_promotion(raw: sqlite3.Connection, row: PromotionRow) -> bool:
    """Store that a run was promoted; False when the same was stored before."""
    columns = encode(row)
    same = raw.execute(
        "SELECT 1 FROM promotions WHERE run_id = :run_id AND quotable = :quotable "
        "AND reasons = :reasons AND destination = :destination",
        columns,
    )
    return same.fetchone() is None and _insert(raw, "promotions", columns)


def _insert_run(raw: sqlite3.Connection, run: RunRow) -> None:
    columns = encode(run)
    environment = to_json(run.environment)
    columns["environment"] = content_hash({"environment": environment})
    _insert(
        raw,
        "environments",
        {"content_hash": columns["environment"], "content": environment},
        "OR IGNORE",
    )
    _insert(raw, "runs", columns)


def _require_trial(raw: sqlite3.Connection, trial: Mapping[str, Any]) -> None:
    found = raw.execute("SELECT 1 FROM trials WHERE trial_id = ?", (trial["trial_id"],)).fetchone()
    if found is None:
        of_run = f" of run {trial['run_id']}" if "run_id" in trial else ""
        raise StoreError(
            f"trial {trial['trial_id']}{of_run} is not planned in this database; name the one it "
            "was planned in with --db"
        )


def _columns(kind: type[Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a row class and no others: a spool file may hold anything."""
    return {name: content[name] for name in column_names(kind) if name in content}


def _insert(
    raw: sqlite3.Connection, table: str, columns: Mapping[str, Any], conflict: str = ""
) -> bool:
    names = ", ".join(columns)
    values = ", ".join(f":{name}" for name in columns)
    done = raw.execute(f"INSERT {conflict} INTO {table} ({names}) VALUES ({values})", columns)
    return done.rowcount > 0


def _update(
    raw: sqlite3.Connection,
    table: str,
    columns: Mapping[str, Any],
    where: str,
    keys: Mapping[str, Any],
) -> bool:
    changes = ", ".join(f"{name} = :{name}" for name in columns)
    done = raw.execute(f"UPDATE {table} SET {changes} WHERE {where}", {**columns, **keys})
    return done.rowcount > 0
