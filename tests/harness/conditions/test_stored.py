"""Samples in the database, those of older ones included."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

from harness.report import build_report
from harness.store import ConditionRow, EvalStore
from tests.harness.report.full_run import full_run

NEW = (
    "window_s cores ours_cores others_cores heaviest stolen_share throttled_share "
    "memory_wait_share swapped_bytes heat_events standing"
).split()

FULL = ConditionRow(
    run_id="",
    sampled_at="2026-03-04T05:06:09Z",
    phase="running",
    load_1m=1.5,
    on_battery=True,
    window_s=5.0,
    cores=4,
    ours_cores=1.5,
    others_cores=0.25,
    heaviest=({"pid": 3, "name": "日本 | `x`", "cores": 0.2},),
    stolen_share=0.01,
    throttled_share=0.02,
    memory_wait_share=0.03,
    swapped_bytes=2**40,
    heat_events=1,
    standing={"power_mode": "balanced", "gpu": {"clock_mhz": 1.0, "slowdowns": []}},
)


def test_a_sample_comes_back_as_it_was(tmp_path: Path) -> None:
    sample = full_run()
    row = replace(FULL, run_id=sample.run_id)
    sample.conditions.append(row)

    assert row in sample.load(tmp_path).conditions


def test_a_database_of_before_the_watch_opens_and_reports_the_same(tmp_path: Path) -> None:
    sample, path = full_run(), tmp_path / "fm.db"
    with EvalStore.open(path) as store:
        sample.store_in(store)
        before = build_report(store.load_run(sample.run_id))
    raw = sqlite3.connect(path)
    for column in NEW:
        raw.execute(f"ALTER TABLE conditions DROP COLUMN {column}")
    raw.execute("DELETE FROM _sqlite_migrations WHERE name = 'm006_conditions'")
    raw.commit()
    raw.close()

    with EvalStore.open(path) as store:
        data = store.load_run(sample.run_id)
    assert data.conditions == tuple(sample.conditions)
    assert build_report(data) == before
    assert before.machine == ()
