"""Databases of several machines become one: nothing lost, doubled, or taken in against another."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.store import (
    ConditionRow,
    EvalStore,
    MergeOutcome,
    PromotionRow,
    RunData,
    StoreError,
    TrialRecord,
    TurnRow,
)
from harness.store.merge import (
    JUDGED,
    OBSERVED,
    OF_RUN,
    OF_TRIAL,
    REFERRED,
    UNDER_WAY,
)
from tests.harness.results.published import MACHINE, ONE, THREE, TWO, finish, steady_run
from tests.harness.store.sample_run import MODEL, Sample


def stored(path: Path, *samples: Sample) -> Path:
    with EvalStore.open(path) as store:
        for sample in samples:
            finish(store, sample)
    return path


def merged(path: Path, *others: Path) -> list[MergeOutcome]:
    with EvalStore.open(path) as store:
        return [store.merge(other) for other in others]


def content(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return every row of every table, in an order of their own."""
    raw = sqlite3.connect(path)
    try:
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE '%sqlite%'"
        names = [row[0] for row in raw.execute(query)]
        return {name: sorted(raw.execute(f"SELECT * FROM {name}"), key=repr) for name in names}
    finally:
        raw.close()


def load(path: Path, run_id: str) -> RunData:
    with EvalStore.open(path) as store:
        return store.load_run(run_id)


def full(run_id: str) -> Sample:
    """Return a run with rows in the tables that a plain one leaves empty."""
    sample = steady_run(run_id)
    sample.conditions.append(
        ConditionRow(run_id=run_id, sampled_at="2026-03-04T05:06:08Z", phase="preflight")
    )
    return sample


def test_runs_of_two_machines_are_both_there_as_they_were(tmp_path: Path) -> None:
    ours, theirs = stored(tmp_path / "a.db", full(ONE)), stored(tmp_path / "b.db", full(TWO))
    before = {ONE: load(ours, ONE), TWO: load(theirs, TWO)}
    assert merged(ours, theirs) == [MergeOutcome(added=1, advanced=0, known=0)]
    assert {run_id: load(ours, run_id) for run_id in (ONE, TWO)} == before


def test_twice_is_the_same_as_once_and_the_order_does_not_matter(tmp_path: Path) -> None:
    parts = [
        stored(tmp_path / f"{name}.db", full(run_id))
        for name, run_id in {"one": ONE, "two": TWO, "three": THREE}.items()
    ]
    first, second = tmp_path / "first.db", tmp_path / "second.db"
    merged(first, *parts)
    once = content(first)
    assert merged(first, *parts) == [MergeOutcome(added=0, advanced=0, known=1)] * 3
    merged(second, *parts[::-1])
    assert content(first) == once
    assert content(second) == once


def test_merging_a_database_with_itself_changes_nothing(tmp_path: Path) -> None:
    path = stored(tmp_path / "fm.db", full(ONE))
    before = content(path)
    assert merged(path, path) == [MergeOutcome(added=0, advanced=0, known=1)]
    assert content(path) == before


def test_the_other_database_is_left_as_it_is(tmp_path: Path) -> None:
    ours, theirs = stored(tmp_path / "a.db", full(ONE)), stored(tmp_path / "b.db", full(TWO))
    before = theirs.read_bytes()
    theirs.chmod(0o400)
    merged(ours, theirs)
    assert theirs.read_bytes() == before


def half_run(path: Path, sample: Sample, kept: slice) -> Path:
    """Store a run of which only some trials have come to their end."""
    part = replace(sample, records=sample.records[kept])
    with EvalStore.open(path) as store:
        part.store_in(store)
    return path


def test_a_copy_taken_while_a_run_went_on_is_brought_up_to_date(tmp_path: Path) -> None:
    sample = full(ONE)
    copy = half_run(tmp_path / "copy.db", sample, slice(0, 7))
    whole = stored(tmp_path / "whole.db", full(ONE))
    assert merged(copy, whole) == [MergeOutcome(added=0, advanced=1, known=0)]
    assert load(copy, ONE) == load(whole, ONE)
    assert merged(copy, whole) == [MergeOutcome(added=0, advanced=0, known=1)]


def test_turns_of_a_trial_come_along_until_it_is_through(tmp_path: Path) -> None:
    sample = full(ONE)
    copy = half_run(tmp_path / "copy.db", sample, slice(0, 7))
    further = half_run(tmp_path / "further.db", sample, slice(0, 7))
    whole = stored(tmp_path / "whole.db", full(ONE))
    with EvalStore.open(further) as store:
        (pending, *_) = store.pending_trials(ONE)
        record = {"trial": {}, "requests": [], "accepts": []}
        turns = [
            TurnRow(trial_id=pending.trial_id, attempt=0, turn=turn, whereabouts="", record=record)
            for turn in range(2)
        ]
        assert store.record_turns(turns).saved
        # Twice is the same as once.
        assert store.record_turns(turns).saved
    assert merged(copy, further) == [MergeOutcome(added=0, advanced=1, known=0)]
    with EvalStore.open(copy) as store:
        assert list(store.turns(ONE)) == turns
        assert store.integrity_problems() == ()
    merged(copy, whole)
    with EvalStore.open(copy) as store:
        assert store.turns(ONE) == ()
        assert store.record_turns(turns).saved
        assert store.turns(ONE) == ()
    assert load(copy, ONE) == load(whole, ONE)


def test_turns_of_two_lives_are_never_put_together(tmp_path: Path) -> None:
    """A copy that was gone on with by itself has turns that saw other things."""
    sample = full(ONE)
    copies = [half_run(tmp_path / f"{name}.db", sample, slice(0, 7)) for name in "ab"]
    kept = []
    for path, count in zip(copies, (1, 3), strict=True):
        with EvalStore.open(path) as store:
            (pending, *_) = store.pending_trials(ONE)
            turns = [
                TurnRow(
                    trial_id=pending.trial_id,
                    attempt=0,
                    turn=turn,
                    whereabouts="",
                    record={"life": path.name},
                )
                for turn in range(count)
            ]
            assert store.record_turns(turns).saved
            kept.append(turns)
    merged(copies[1], copies[0])
    merged(copies[0], copies[1])
    for path in copies:
        with EvalStore.open(path) as store:
            assert list(store.turns(ONE)) == kept[1]


def test_a_turn_of_a_trial_that_nobody_planned_is_refused(tmp_path: Path) -> None:
    path = stored(tmp_path / "fm.db", full(ONE))
    stray = tmp_path / "spool.jsonl"
    line = {"kind": "turn", "trial_id": "nobody", "attempt": 0, "turn": 0}
    line |= {"whereabouts": "", "record": "{}"}
    stray.write_text(f"{json.dumps(line)}\n")
    with EvalStore.open(path) as store, pytest.raises(StoreError, match="nobody is not planned"):
        store.import_spool(stray)


def test_what_a_run_learnt_of_its_machine_comes_with_it(tmp_path: Path) -> None:
    copy = half_run(tmp_path / "copy.db", steady_run(ONE), slice(0, 7))
    learnt = {**MACHINE, "memory_bandwidth_gb_s": 20.5}
    whole = stored(tmp_path / "whole.db", steady_run(ONE, environment=learnt))
    merged(copy, whole)
    assert load(copy, ONE).run.environment == learnt


def test_an_older_copy_takes_nothing_back(tmp_path: Path) -> None:
    whole = stored(tmp_path / "whole.db", full(ONE))
    copy = half_run(tmp_path / "copy.db", full(ONE), slice(0, 7))
    before = content(whole)
    assert merged(whole, copy) == [MergeOutcome(added=0, advanced=0, known=1)]
    assert content(whole) == before


def test_two_copies_that_each_did_another_part_make_the_whole(tmp_path: Path) -> None:
    sample = steady_run(ONE)
    one = half_run(tmp_path / "one.db", sample, slice(0, 7))
    other = half_run(tmp_path / "other.db", sample, slice(7, None))
    merged(one, other)
    data = load(one, ONE)
    assert {trial.status for trial in data.trials} == {"done"}
    assert len(data.requests) == len(sample.records)


@pytest.mark.parametrize("is_copy_first", [True, False])
def test_a_trial_that_was_run_again_takes_the_place_of_its_failure_in_a_copy(
    tmp_path: Path, is_copy_first: bool
) -> None:
    """The copy was taken when the trial had failed, with a request that got lost."""
    sample = full(ONE)
    last = sample.records[3]
    failed = replace(
        last,
        trial=replace(last.trial, status="failed", reason="lost", tokens=None),
        requests=tuple(replace(row, status="error", error="lost") for row in last.requests),
    )
    records = [*sample.records[:3], failed, *sample.records[4:]]
    copy = stored(tmp_path / "copy.db", replace(sample, records=records))
    second = replace(last, trial=replace(last.trial, failed_before=("lost",)))
    whole = stored(tmp_path / "whole.db", replace(sample, records=[*records, second]))
    expected = content(whole)
    assert load(whole, ONE).requests == load(stored(tmp_path / "x.db", full(ONE)), ONE).requests
    order = (copy, whole) if is_copy_first else (whole, copy)
    merged(*order)
    assert content(order[0]) == expected
    merged(*order[::-1])
    assert content(order[1]) == expected


def changed(sample: Sample, change: Callable[[TrialRecord], TrialRecord]) -> Sample:
    sample.records[3] = change(sample.records[3])
    return sample


CONFLICTS: dict[str, tuple[Callable[[], Sample], str]] = {
    "another speed": (
        lambda: changed(
            steady_run(ONE),
            lambda record: replace(record, trial=replace(record.trial, aggregate_s=9.0)),
        ),
        r"saw otherwise \(trials: aggregate_s\)",
    ),
    "another reply": (
        lambda: changed(
            steady_run(ONE),
            lambda record: replace(record, requests=(replace(record.requests[0], text="other"),)),
        ),
        r"saw otherwise \(requests: text\)",
    ),
    "a reply less": (
        lambda: changed(steady_run(ONE), lambda record: replace(record, requests=())),
        r"saw otherwise \(requests: ",
    ),
    "another command": (
        lambda: steady_run(ONE, command="fm run --cells batch4"),
        r"planned otherwise there \(runs: command\)",
    ),
    "another model": (
        lambda: steady_run(ONE, model=replace(MODEL, name="other")),
        r"planned otherwise there \(trials: model\)",
    ),
    "other trials": (
        lambda: steady_run(ONE, blocks=3, settings={}),
        r"planned otherwise there",
    ),
}


@pytest.mark.parametrize(("make", "reason"), CONFLICTS.values(), ids=CONFLICTS.keys())
def test_a_run_with_other_rows_is_refused_and_nothing_of_its_database_comes_in(
    tmp_path: Path, make: Callable[[], Sample], reason: str
) -> None:
    ours = stored(tmp_path / "a.db", steady_run(ONE))
    theirs = stored(tmp_path / "b.db", steady_run("01AAAA00000000000000000000"), make())
    before = content(ours)
    with (
        EvalStore.open(ours) as store,
        pytest.raises(StoreError, match=f"run {ONE} cannot be merged: .*{reason}") as caught,
    ):
        store.merge(theirs)
    assert "\n" not in str(caught.value)
    assert content(ours) == before


def test_rows_that_claim_the_id_of_another_runs_trial_are_refused(tmp_path: Path) -> None:
    ours = stored(tmp_path / "a.db", steady_run(ONE))
    thief = steady_run(TWO)
    thief.planned[0] = replace(thief.planned[0], trial_id=f"{ONE}-000")
    thief.records = []
    with EvalStore.open(tmp_path / "b.db") as store:
        thief.store_in(store)
    with (
        EvalStore.open(ours) as store,
        pytest.raises(StoreError, match=f"run {TWO} cannot be merged: its rows belong"),
    ):
        store.merge(tmp_path / "b.db")


def test_promotions_of_both_are_kept(tmp_path: Path) -> None:
    paths = [stored(tmp_path / f"{name}.db", steady_run(ONE)) for name in "ab"]
    for number, path in enumerate(paths):
        with EvalStore.open(path) as store:
            store.record_promotion(
                PromotionRow(
                    promotion_id=f"P{number}",
                    run_id=ONE,
                    promoted_at=f"2026-03-0{number + 1}T00:00:00Z",
                    quotable=True,
                    reasons=(),
                    destination=f"page{number}",
                )
            )
    merged(paths[0], paths[1])
    with EvalStore.open(paths[0]) as store:
        assert [row.promotion_id for row in store.promotions(ONE)] == ["P0", "P1"]


def test_every_table_is_merged(tmp_path: Path) -> None:
    """A migration that adds a table has to say here how two databases share it."""
    stored(tmp_path / "fm.db", steady_run(ONE))
    assert {*OF_RUN, *OF_TRIAL, *REFERRED} == set(content(tmp_path / "fm.db"))
    assert {*OBSERVED, *JUDGED, *UNDER_WAY} == set(OF_TRIAL)


def test_a_file_that_is_no_database_or_not_there_is_refused(tmp_path: Path) -> None:
    notes = tmp_path / "notes.db"
    notes.write_text("these are notes, not a database; " * 100)
    with EvalStore.open(tmp_path / "fm.db") as store:
        with pytest.raises(StoreError, match=r"notes\.db.*no SQLite database"):
            store.merge(notes)
        with pytest.raises(StoreError, match=r"there is no database .*nowhere\.db"):
            store.merge(tmp_path / "nowhere.db")
    assert notes.read_text().startswith("these are notes")


def test_one_run_as_a_file_of_its_own_is_merged_like_any_other(tmp_path: Path) -> None:
    path = stored(tmp_path / "fm.db", full(ONE), full(TWO))
    alone = tmp_path / "one.db"
    with EvalStore.open(path) as store:
        store.export_run(TWO, alone)
    assert sorted(item.name for item in tmp_path.glob("one*")) == ["one.db"]
    with EvalStore.open(alone) as store:
        assert [run.run_id for run in store.list_runs()] == [TWO]
        assert store.integrity_problems() == ()
    assert merged(tmp_path / "new.db", alone) == [MergeOutcome(added=1, advanced=0, known=0)]
    assert load(tmp_path / "new.db", TWO) == load(path, TWO)


def test_a_database_of_another_program_is_named_as_the_caller_named_it(tmp_path: Path) -> None:
    other = tmp_path / "places.sqlite"
    raw = sqlite3.connect(other)
    raw.execute("CREATE TABLE runs (a)")
    raw.close()
    with pytest.raises(StoreError, match=f"^{other} is a database of another program"):
        merged(stored(tmp_path / "fm.db", steady_run(ONE)), other)


def test_a_database_that_lost_a_table_is_one_line_and_nothing_comes_in(tmp_path: Path) -> None:
    other = stored(tmp_path / "other.db", steady_run(TWO))
    ours = stored(tmp_path / "fm.db", steady_run(ONE))
    raw = sqlite3.connect(other)
    raw.execute("DROP TABLE laws")
    raw.close()
    before = content(ours)
    with pytest.raises(StoreError, match=r"no such table: .*laws; it is not as fm wrote it"):
        merged(ours, other)
    assert content(ours) == before


def test_rows_that_fm_never_wrote_are_one_line_and_nothing_comes_in(tmp_path: Path) -> None:
    ours = stored(tmp_path / "fm.db", steady_run(ONE))
    other = stored(tmp_path / "other.db", steady_run(TWO))
    raw = sqlite3.connect(other)
    raw.execute("PRAGMA ignore_check_constraints = ON")
    raw.execute("UPDATE runs SET status = 'promoted'")
    raw.commit()
    raw.close()
    before = content(ours)
    with pytest.raises(StoreError, match=r"or fm never wrote them .CHECK constraint"):
        merged(ours, other)
    assert content(ours) == before
