"""The eval database keeps what it was given, says clearly what it cannot do, and finds runs."""

from __future__ import annotations

import json
import math
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlite_utils import Database

from engine.errors import UnknownNameError
from harness.store import (
    ComparisonRow,
    ConditionRow,
    DivergenceRow,
    EvalStore,
    GateRow,
    LawRow,
    RequestRow,
    StoreError,
    TrialRecord,
    new_id,
    utc_now,
)
from harness.store.codec import clean, decode, encode, to_json
from harness.store.connection import MIGRATIONS
from harness.store.migrations import migrations
from tests.harness.store.sample_run import Sample, reply


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    raw = sqlite3.connect(path)
    try:
        return raw.execute(query).fetchall()
    finally:
        raw.close()


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    sample = Sample(run={"seed": 2**64 - 1, "machine_refusals": ("swap is in use",)})
    sample.add(
        "serial+spec",
        replies=[
            reply("p1", text="日本\0\x1b", seed=2**64 - 1, drafted=4, accepted=2, lane_reason="x"),
            reply("p2", ids=(), status="error", error="gone", finish_reason=None),
            reply("p3", phase="warmup", unchecked_formats=("uri",), conformance="ok"),
        ],
        accepts=[(3, 2), (1, 0)],
    )
    sample.divergences.append(
        DivergenceRow(
            trial_id=sample.planned[0].trial_id,
            prompt_id="p1",
            reference="serial",
            position=7,
            gap=1e-5,
        )
    )
    sample.laws.append(
        LawRow(
            trial_id=sample.planned[0].trial_id,
            position=1,
            draws=9,
            impossible_at=8,
            evidence={"0.5": -1.25},
        )
    )
    sample.conditions.append(
        ConditionRow(
            run_id=sample.run_id,
            sampled_at=utc_now(),
            phase="preflight",
            load_1m=0.5,
            on_battery=False,
            warnings=("a", "b"),
        )
    )
    data = sample.load(tmp_path)
    assert data.run == sample.row
    assert data.trials == (sample.records[0].trial,)
    assert data.requests == sample.records[0].requests
    assert data.accepts == sample.records[0].accepts
    assert data.divergences == tuple(sample.divergences)
    assert data.laws == tuple(sample.laws)
    assert data.conditions == tuple(sample.conditions)
    assert data.models == tuple(sample.models.values())
    assert [cell.name for cell in data.cells] == ["serial+spec"]
    assert data.cells[0] == sample.cells["serial+spec"]


def test_a_run_can_be_concluded_again(tmp_path: Path) -> None:
    sample = Sample()
    sample.add("serial")
    gate = GateRow(run_id=sample.run_id, name="identity", status="fail", observed=0.5, n=2)
    comparison = ComparisonRow(
        run_id=sample.run_id,
        model="tiny",
        workload="short-chat",
        cell="serial+spec",
        baseline="serial",
        metric="aggregate",
        n=7,
        estimate=1.2,
        low=math.nan,
        high=math.inf,
        verdict="faster",
    )
    with EvalStore.open(tmp_path / "fm.db") as store:
        sample.store_in(store)
        store.record_gates(sample.run_id, [gate])
        store.record_gates(sample.run_id, [replace(gate, status="pass", observed=1.0)])
        store.record_comparisons(sample.run_id, [comparison])
        store.record_comparisons(sample.run_id, [comparison])
        store.finish_run(
            sample.run_id, status="finished", exit_code=3, unquotable_reasons=["3 blocks"]
        )
        data = store.load_run(sample.run_id)
    assert [gate.status for gate in data.gates] == ["pass"]
    assert data.run.status == "finished"
    assert data.run.exit_code == 3
    assert data.run.quotable is False
    assert data.run.unquotable_reasons == ("3 blocks",)
    assert data.run.finished_at is not None
    assert rows(tmp_path / "fm.db", "SELECT estimate, low, high FROM comparisons") == [
        (1.2, None, None)
    ]


def test_a_resumed_run_says_nothing_more_of_its_earlier_end(tmp_path: Path) -> None:
    sample = Sample()
    sample.add("serial")
    sample.load(tmp_path)
    with EvalStore.open(tmp_path / "fm.db") as store:
        gate = GateRow(run_id=sample.run_id, name="completeness", status="incomplete")
        assert store.record_gates(sample.run_id, [gate]).saved
        assert store.finish_run(
            sample.run_id, status="failed", exit_code=6, unquotable_reasons=["gate completeness"]
        ).saved
        run = store.resume_run(sample.run_id)
        assert (run.status, run.exit_code, run.quotable, run.finished_at) == (
            ("running", None, None, None)
        )
        assert run.unquotable_reasons == ()
        assert store.load_run(sample.run_id).gates == ()


@pytest.mark.parametrize(
    ("status", "exit_code", "reasons", "quotable"),
    [
        ("finished", 0, [], True),
        ("finished", 0, ["3 blocks"], False),
        ("finished", 6, [], False),
        ("interrupted", 130, [], False),
    ],
)
def test_only_a_finished_run_that_passed_is_quotable(
    tmp_path: Path,
    status: Literal["finished", "interrupted"],
    exit_code: int,
    reasons: list[str],
    quotable: bool,
) -> None:
    sample = Sample()
    with EvalStore.open(tmp_path / "fm.db") as store:
        sample.store_in(store)
        store.finish_run(
            sample.run_id, status=status, exit_code=exit_code, unquotable_reasons=reasons
        )
        assert store.find_run("latest").quotable is quotable


def test_a_trial_recorded_twice_is_stored_once(tmp_path: Path) -> None:
    sample = Sample()
    sample.add("serial", replies=[reply("p1"), reply("p2")])
    with EvalStore.open(tmp_path / "fm.db") as store:
        sample.store_in(store)
        changed = replace(sample.records[0].trial, wall_s=99.0)
        assert store.record_trial(replace(sample.records[0], trial=changed)).saved
        data = store.load_run(sample.run_id)
    assert data.trials[0].wall_s == 10.0
    assert len(data.requests) == 2


def test_pending_trials_come_in_the_order_of_the_plan_and_go_when_recorded(tmp_path: Path) -> None:
    sample = Sample()
    late = sample.plan("serial", block=1, order_in_block=0)
    second = sample.plan("serial", block=0, order_in_block=1)
    first = sample.plan("serial+spec", block=0, order_in_block=0)
    sample.plan("serial+grammar", status="skipped", reason="no constraint")
    with EvalStore.open(tmp_path / "fm.db") as store:
        sample.store_in(store)
        assert store.pending_trials(sample.run_id) == (first, second, late)
        store.record_trial(TrialRecord(trial=replace(second, status="failed", reason="boom")))
        assert store.pending_trials(sample.run_id) == (first, late)


@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    )
)
def test_any_value_becomes_strict_json(value: object) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} got in")

    json.loads(to_json(value).encode(), parse_constant=refuse)
    assert clean(clean(value)) == clean(value)


@given(
    figure=st.floats() | st.none() | st.integers(0, 2**62).map(float),
    text=st.text(st.characters(exclude_categories=())),
)
def test_no_nan_or_infinity_gets_in_and_no_text_is_refused(figure: float | None, text: str) -> None:
    row = replace(reply(), ttft_s=figure, text=text, sampling={"top_p": figure})
    back = decode(RequestRow, json.loads(json.dumps(encode(row), allow_nan=False)))
    assert back.ttft_s == (figure if figure is not None and math.isfinite(figure) else None)
    assert back.text == text.encode("utf-8", "backslashreplace").decode()


def test_numpy_numbers_are_stored_as_numbers(tmp_path: Path) -> None:
    sample = Sample()
    sample.add("serial", wall_s=np.float32(0.5), decode_steps=np.int64(7), step_s=np.float64("nan"))
    trial = sample.load(tmp_path).trials[0]
    assert (trial.wall_s, trial.decode_steps, trial.step_s) == (0.5, 7, None)


def test_every_table_is_strict(tmp_path: Path) -> None:
    Sample().load(tmp_path)
    strict = "SELECT sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE '%sqlite%'"
    found = rows(tmp_path / "fm.db", strict)
    assert len(found) == 15
    assert all(sql.endswith("STRICT") for (sql,) in found)


def test_the_required_tables_and_views_exist(tmp_path: Path) -> None:
    Sample().load(tmp_path)
    names = {name for (name,) in rows(tmp_path / "fm.db", "SELECT name FROM sqlite_master")}
    tables = "runs environments models workloads cells trials requests accept_pos conditions"
    views = "v_cell v_composition v_accept_curve v_history"
    assert set(f"{tables} comparisons gates promotions {views}".split()) <= names
    columns = [row[1] for row in rows(tmp_path / "fm.db", "PRAGMA table_info(accept_pos)")]
    assert columns == ["trial_id", "pos", "drafted", "accepted"]


def test_runs_are_found_by_latest_id_and_beginning(tmp_path: Path) -> None:
    first = Sample(run_id="01AAAA0000000000000000000A", run={"created_at": "2026-01-01T00:00:00Z"})
    second = Sample(run_id="01AAAB0000000000000000000A", run={"created_at": "2026-01-02T00:00:00Z"})
    third = Sample(run_id="01BBBB0000000000000000000A", run={"created_at": "2025-12-31T00:00:00Z"})
    with EvalStore.open(tmp_path / "fm.db") as store:
        for sample in (first, second, third):
            sample.store_in(store)
        assert store.find_run("latest").run_id == second.run_id
        assert store.find_run(third.run_id).run_id == third.run_id
        assert store.find_run("01b").run_id == third.run_id
        assert [run.run_id for run in store.list_runs(2)] == [second.run_id, first.run_id]
        with pytest.raises(StoreError, match=r"several: 01AAAB.*, 01AAAA.*give more"):
            store.find_run("01A")
        for unknown in ("02", "", "%", "01_"):
            with pytest.raises(UnknownNameError, match=r"unknown run .*known: .*latest"):
                store.find_run(unknown)
        with pytest.raises(UnknownNameError):
            store.load_run("01B")


def test_an_empty_database_says_what_to_do(tmp_path: Path) -> None:
    with (
        EvalStore.open(tmp_path / "fm.db") as store,
        pytest.raises(StoreError, match="holds no runs yet; run `fm run` first"),
    ):
        store.find_run("latest")


def test_a_missing_database_is_not_made_by_reading(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no database .*nowhere\.db"):
        EvalStore.open_existing(tmp_path / "nowhere.db")
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_no_database_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "fm.db"
    path.write_text("these are notes, not a database; " * 100)
    with pytest.raises(StoreError, match="not a database; it is no SQLite database"):
        EvalStore.open(path)
    assert path.read_text().startswith("these are notes")


def test_a_file_to_merge_that_is_no_database_is_not_the_one_that_db_names(tmp_path: Path) -> None:
    notes = tmp_path / "notes.md"
    notes.write_text("these are notes, not a database; " * 100)
    with (
        EvalStore.open(tmp_path / "fm.db") as store,
        pytest.raises(StoreError, match=r"notes\.md: .*no SQLite database; name another file$"),
    ):
        store.merge(notes)


@pytest.mark.parametrize("table", ["runs", "urls"])
def test_a_database_of_another_program_is_refused_and_left_as_it_is(
    tmp_path: Path, table: str
) -> None:
    path = tmp_path / "places.sqlite"
    raw = sqlite3.connect(path)
    raw.execute(f"CREATE TABLE {table} (name TEXT)")
    raw.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=f"of another program .it has '{table}'.; name another"):
        EvalStore.open_existing(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["places.sqlite"]


def test_no_name_of_a_file_makes_a_database_that_is_gone_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with EvalStore.open(Path(":memory:")):
        """Closed at once."""
    assert (tmp_path / ":memory:").is_file()


def test_a_database_of_a_newer_fm_is_refused(tmp_path: Path) -> None:
    Sample().load(tmp_path)
    raw = sqlite3.connect(tmp_path / "fm.db")
    raw.execute(
        "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('fm', 'm999', '')"
    )
    raw.commit()
    raw.close()
    with pytest.raises(StoreError, match="written by a newer fm; update fm"):
        EvalStore.open(tmp_path / "fm.db")


def test_the_names_of_the_migrations_are_those_that_are_defined() -> None:
    database = Database(memory=True)
    assert tuple(item.name for item in migrations.pending(database)) == MIGRATIONS
    database.close()


def test_opening_again_changes_nothing(tmp_path: Path) -> None:
    before = Sample().load(tmp_path)
    with EvalStore.open(tmp_path / "fm.db") as store:
        assert store.load_run(before.run.run_id) == before
        assert store.integrity_problems() == ()
        assert store.journal_mode == "wal"


def test_ids_are_ulids_that_differ() -> None:
    ids = [new_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert {len(item) for item in ids} == {26}


def test_the_environment_is_stored_once_for_runs_that_share_it(tmp_path: Path) -> None:
    with EvalStore.open(tmp_path / "fm.db") as store:
        for letter in "ABC":
            Sample(run_id=f"01{letter}").store_in(store)
        Sample(run_id="01D", run={"environment": {"python": "3.12"}}).store_in(store)
    assert rows(tmp_path / "fm.db", "SELECT COUNT(*) FROM environments") == [(2,)]
