"""Databases that an older fm wrote: they open, keep their rows, and are reported."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlite_utils import Database

from harness.report import build_report, to_html, to_json, to_markdown
from harness.store import EvalStore, StoreError
from harness.store.connection import MIGRATIONS
from harness.store.migrations import migrations
from tests.harness.report.full_run import full_run
from tests.harness.store.sample_run import Sample


def columns(raw: sqlite3.Connection, schema: str, table: str) -> list[str]:
    return [row[1] for row in raw.execute(f"PRAGMA {schema}.table_info({table})")]


def older(path: Path, new: Path, count: int) -> None:
    """Write the rows of a new database to one with the first migrations alone."""
    raw = sqlite3.connect(path)
    migrations.apply(Database(raw), stop_before=MIGRATIONS[count])
    raw.commit()
    raw.execute("ATTACH DATABASE ? AS new", (str(new),))
    query = "SELECT name FROM main.sqlite_master WHERE type = 'table' AND sql LIKE '%STRICT%'"
    for (table,) in raw.execute(query).fetchall():
        there = columns(raw, "new", table)
        names = ", ".join(name for name in columns(raw, "main", table) if name in there)
        raw.execute(f"INSERT INTO main.{table} ({names}) SELECT {names} FROM new.{table}")
    raw.commit()
    raw.close()


@pytest.mark.parametrize("count", range(1, len(MIGRATIONS)))
def test_a_database_of_any_older_fm_keeps_its_rows_and_is_reported(
    tmp_path: Path, count: int
) -> None:
    sample, path = full_run(), tmp_path / "old.db"
    before = sample.load(tmp_path)
    older(path, tmp_path / "fm.db", count)
    with EvalStore.open_existing(path) as store:
        assert store.integrity_problems() == ()
        data = store.load_run(sample.run_id)
        report = build_report(store.load_report(sample.run_id))
    assert data.requests == before.requests
    assert [row.trial_id for row in data.trials] == [row.trial_id for row in before.trials]
    assert all(write(report) for write in (to_markdown, to_html, to_json))


def test_what_a_kill_leaves_of_a_new_database_is_finished_later(tmp_path: Path) -> None:
    path = tmp_path / "fm.db"
    raw = sqlite3.connect(path)
    migrations.ensure_migrations_table(Database(raw))
    raw.commit()
    raw.close()
    assert Sample().load(tmp_path).run.run_id


@pytest.mark.parametrize(
    ("column", "text"), [("settings", "not JSON"), ("settings", "[]"), ("machine_refusals", "5")]
)
def test_a_column_that_holds_what_fm_never_writes_is_one_line(
    tmp_path: Path, column: str, text: str
) -> None:
    sample = Sample()
    sample.load(tmp_path)
    raw = sqlite3.connect(tmp_path / "fm.db")
    raw.execute(f"UPDATE runs SET {column} = ?", (text,))
    raw.commit()
    raw.close()
    with (
        EvalStore.open(tmp_path / "fm.db") as store,
        pytest.raises(StoreError, match=f"as {column}, which fm never writes; restore"),
    ):
        store.find_run("latest")
