"""Rows of another database, taken into this one: ids are ULIDs, so nothing is ever renumbered.

The other database is attached as `other`, at the same schema. A run that is new comes in whole. A
run that both have was copied earlier, perhaps while it ran: what one of them still had to do, or
has run again since it failed, is taken from that one, and what both observed has to be the same.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from harness.store.connection import StoreError

OF_RUN = ("runs", "trials", "conditions", "gates", "comparisons", "promotions")
"""Tables with a column run_id, in an order in which each may refer to those before it."""

OF_TRIAL = ("requests", "accept_pos", "divergences", "laws", "turns")
"""Tables with a column trial_id and without run_id."""

REFERRED: Mapping[str, tuple[str, str, str]] = {
    "environments": ("content_hash", "runs", "environment"),
    "models": ("key", "trials", "model"),
    "workloads": ("content_hash", "trials", "workload"),
    "cells": ("content_hash", "trials", "cell"),
}
"""Tables that are addressed by content: their key, and the table and column that refer to it."""

UNDER_WAY = ("turns",)
"""What there is of a trial that is not through."""

OBSERVED = ("requests", "accept_pos")
"""What a trial observed, beside its own row; only another attempt at it changes that."""

JUDGED = ("divergences", "laws")
"""What was made of a trial's replies; a later judgement takes the place of an earlier one."""

CONCLUDED = ("gates", "comparisons")
"""What is written anew each time a run ends."""

RUN_PLAN = frozenset(
    {
        "created_at",
        "command",
        "preset",
        "seed",
        "blocks",
        "prompts",
        "max_tokens",
        "target",
        "plan_hash",
    }
)
TRIAL_PLAN = frozenset({"run_id", "block", "order_in_block", "model", "workload", "cell"})
"""Columns that say what was going to happen; two copies of a run agree in them."""

_IN_BOTH = "main.trials AS a JOIN other.trials AS b ON b.trial_id = a.trial_id"
_ATTEMPT_A, _ATTEMPT_B = (f"json_array_length({name}.failed_before)" for name in "ab")
_FINISHED_IN_BOTH = f"""
    SELECT a.trial_id FROM {_IN_BOTH}
    WHERE a.run_id = ? AND a.status <> 'pending' AND b.status <> 'pending'
    AND {_ATTEMPT_A} = {_ATTEMPT_B}
"""
_FURTHER_THERE = f"""
    SELECT a.trial_id FROM {_IN_BOTH}
    WHERE a.run_id = ? AND b.status <> 'pending' AND (
        {_ATTEMPT_A} < {_ATTEMPT_B} OR {_ATTEMPT_A} = {_ATTEMPT_B} AND a.status = 'pending'
    )
"""
_MORE_TURNS_THERE = f"""
    SELECT a.trial_id FROM {_IN_BOTH}
    WHERE a.run_id = ? AND a.status = b.status AND {_ATTEMPT_A} = {_ATTEMPT_B}
    AND (SELECT COUNT(*) FROM main.turns AS t WHERE t.trial_id = a.trial_id)
        < (SELECT COUNT(*) FROM other.turns AS t WHERE t.trial_id = a.trial_id)
"""
_TRIALS = "SELECT trial_id FROM other.trials WHERE run_id = ?"


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOutcome:
    """What came in: runs that were new, that had gone on, and that were here already."""

    added: int
    advanced: int
    known: int


def take_in(raw: sqlite3.Connection, run_ids: Sequence[str] = ()) -> MergeOutcome:
    """Take in runs of the attached database, by default all of them; inside a transaction.

    Raises:
        StoreError: a run of both has other rows there; nothing may be kept of the transaction.
    """
    theirs = run_ids or [
        row[0] for row in raw.execute("SELECT run_id FROM other.runs ORDER BY run_id")
    ]
    ours = {row[0] for row in raw.execute("SELECT run_id FROM main.runs")}
    advanced = 0
    for run_id in theirs:
        try:
            advanced += _combine(raw, run_id) if run_id in ours else _copy(raw, run_id)
        except sqlite3.IntegrityError as error:
            raise StoreError(
                f"{_refused(run_id)}: its rows belong to another run here, or fm never wrote them "
                f"({error})"
            ) from error
    known = sum(run_id in ours for run_id in theirs)
    return MergeOutcome(added=len(theirs) - known, advanced=advanced, known=known - advanced)


def _copy(raw: sqlite3.Connection, run_id: str) -> bool:
    """Copy a run that is new here, with all it refers to; no run of ours goes on by that."""
    for table in REFERRED:
        _insert_referred(raw, table, run_id)
    for table in OF_RUN:
        _insert(raw, table, "run_id = ?", run_id)
    for table in OF_TRIAL:
        _insert(raw, table, f"trial_id IN ({_TRIALS})", run_id)
    return False


def _combine(raw: sqlite3.Connection, run_id: str) -> bool:
    """Bring two copies of one run together; False when the other one has nothing to add."""
    before = raw.total_changes
    _require_same_plan(raw, run_id)
    _require_same_observations(raw, run_id)
    is_further = _progress(raw, "other", run_id) > _progress(raw, "main", run_id)
    _take_finished_trials(raw, run_id)
    _take_turns(raw, run_id)
    _insert(raw, "conditions", "run_id = ?", run_id, "OR IGNORE")
    _insert(raw, "promotions", "run_id = ?", run_id, "OR IGNORE")
    for table in JUDGED:
        conflict = "OR REPLACE" if is_further else "OR IGNORE"
        _insert(raw, table, f"trial_id IN ({_TRIALS})", run_id, conflict)
    if is_further:
        _take_ending(raw, run_id)
    return raw.total_changes > before


def _require_same_plan(raw: sqlite3.Connection, run_id: str) -> None:
    differing = _differing(raw, "runs", "a.run_id = ?", run_id, RUN_PLAN)
    differing = differing or _differing(raw, "trials", "a.run_id = ?", run_id, TRIAL_PLAN)
    if differing:
        raise StoreError(f"{_refused(run_id)}: it was planned otherwise there ({differing})")


def _require_same_observations(raw: sqlite3.Connection, run_id: str) -> None:
    for table in ("trials", *OBSERVED):
        differing = _differing(raw, table, f"a.trial_id IN ({_FINISHED_IN_BOTH})", run_id)
        if differing:
            raise StoreError(
                f"{_refused(run_id)}: both have a trial that the other saw otherwise "
                f"({differing}); keep one of the two databases apart"
            )


def _take_finished_trials(raw: sqlite3.Connection, run_id: str) -> None:
    """Take what a trial that is pending or failed here observed there, if it came further."""
    for (trial_id,) in raw.execute(_FURTHER_THERE, (run_id,)).fetchall():
        _update(raw, "trials", "trial_id", trial_id, TRIAL_PLAN)
        for table in OBSERVED:
            raw.execute(f"DELETE FROM main.{table} WHERE trial_id = ?", (trial_id,))
            _insert(raw, table, "trial_id = ?", trial_id)
        raw.execute("DELETE FROM main.turns WHERE trial_id = ?", (trial_id,))


def _take_turns(raw: sqlite3.Connection, run_id: str) -> None:
    """Take the turns of trials that are further there, all of a trial or none: they are one life's.

    Two copies of a run that was gone on with in both have turns that saw other things.
    """
    for (trial_id,) in raw.execute(_MORE_TURNS_THERE, (run_id,)).fetchall():
        raw.execute("DELETE FROM main.turns WHERE trial_id = ?", (trial_id,))
        _insert(raw, "turns", "trial_id = ?", trial_id)


def _take_ending(raw: sqlite3.Connection, run_id: str) -> None:
    # What is learnt of a machine during a run gives the run another environment.
    _insert_referred(raw, "environments", run_id)
    _update(raw, "runs", "run_id", run_id, RUN_PLAN)
    for table in CONCLUDED:
        raw.execute(f"DELETE FROM main.{table} WHERE run_id = ?", (run_id,))
        _insert(raw, table, "run_id = ?", run_id)


def _progress(raw: sqlite3.Connection, database: str, run_id: str) -> tuple[int, str]:
    """Return how far a copy of a run has come: attempts that are over, and when it ended."""
    (attempts,) = raw.execute(
        "SELECT TOTAL((status <> 'pending') + json_array_length(failed_before)) "
        f"FROM {database}.trials WHERE run_id = ?",
        (run_id,),
    ).fetchone()
    (ended,) = raw.execute(
        f"SELECT COALESCE(finished_at, '') FROM {database}.runs WHERE run_id = ?", (run_id,)
    ).fetchone()
    return int(attempts), str(ended)


def _differing(
    raw: sqlite3.Connection, table: str, where: str, value: str, only: Set[str] = frozenset()
) -> str:
    """Return in which columns the rows of both databases differ, "" for none.

    Args:
        where: which rows, of the alias `a`.
        only: columns to look at, by default all.
    """
    keys, columns = _keys(raw, table), sorted(only or _columns(raw, table))
    same_key = " AND ".join(f"a.{key} = b.{key}" for key in keys)
    for one, other in (("main", "other"), ("other", "main")):
        found = raw.execute(
            f"SELECT {', '.join(f'a.{name} IS NOT b.{name}' for name in columns)} "
            f"FROM {one}.{table} AS a LEFT JOIN {other}.{table} AS b ON {same_key} "
            f"WHERE {where} AND ({' OR '.join(f'a.{name} IS NOT b.{name}' for name in columns)})",
            (value,),
        ).fetchone()
        if found is not None:
            names = [name for name, differs in zip(columns, found, strict=True) if differs]
            return f"{table}: {', '.join(names)}"
    return ""


def _insert_referred(raw: sqlite3.Connection, table: str, run_id: str) -> None:
    """Insert what a run refers to there, where it is not here yet."""
    key, referring, column = REFERRED[table]
    wanted = f"SELECT {column} FROM other.{referring} WHERE run_id = ?"
    _insert(raw, table, f"{key} IN ({wanted})", run_id, "OR IGNORE")


def _insert(
    raw: sqlite3.Connection, table: str, where: str, value: str, conflict: str = ""
) -> None:
    names = ", ".join(_columns(raw, table))
    raw.execute(
        f"INSERT {conflict} INTO main.{table} ({names}) "
        f"SELECT {names} FROM other.{table} WHERE {where}",
        (value,),
    )


def _update(raw: sqlite3.Connection, table: str, key: str, value: str, kept: Set[str]) -> None:
    """Give one row here the columns it has there, all but those of its plan."""
    names = [name for name in _columns(raw, table) if name not in kept and name != key]
    raw.execute(
        f"UPDATE main.{table} SET ({', '.join(names)}) = "
        f"(SELECT {', '.join(names)} FROM other.{table} WHERE {key} = :value) "
        f"WHERE {key} = :value",
        {"value": value},
    )


def _columns(raw: sqlite3.Connection, table: str) -> list[str]:
    return [row["name"] for row in raw.execute(f"PRAGMA main.table_info({table})")]


def _keys(raw: sqlite3.Connection, table: str) -> list[str]:
    return [row["name"] for row in raw.execute(f"PRAGMA main.table_info({table})") if row["pk"]]


def _refused(run_id: str) -> str:
    return f"run {run_id} cannot be merged"
