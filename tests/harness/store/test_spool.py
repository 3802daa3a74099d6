"""What the database does not take goes to a file that it takes later, once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.store import (
    ConditionRow,
    DivergenceRow,
    EvalStore,
    LawRow,
    SaveOutcome,
    StoreError,
    TrialRecord,
)
from harness.store.codec import encode
from harness.store.spool import Spool, SpoolLine, take_in
from tests.harness.store.sample_run import Sample, big_sample
from tests.harness.store.test_contention import count_rows, held

ROOT = Path(__file__).parents[3]
NUM_LINES = 120


@pytest.fixture
def planned(tmp_path: Path) -> tuple[Sample, list[TrialRecord]]:
    """A run of three trials in a database, with the records that none of them has yet."""
    sample = big_sample("01SPOOL", 3)
    records, sample.records = sample.records, []
    with EvalStore.open(tmp_path / "fm.db") as store:
        sample.store_in(store)
    return sample, records


@pytest.fixture
def hurried(tmp_path: Path, planned: object) -> Iterator[EvalStore]:
    """A store that gives up on a lock at once, as others do after a minute."""
    with EvalStore.open(tmp_path / "fm.db", lock_wait_s=0.05) as store:
        store.resume_run("01SPOOL")
        yield store


def condition(second: int) -> ConditionRow:
    at = f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z"
    return ConditionRow(run_id="01SPOOL", sampled_at=at, phase="running")


def locked_out(store: EvalStore, record: TrialRecord) -> SaveOutcome:
    with held(store.path, "BEGIN EXCLUSIVE"):
        return store.record_trial(record)


def test_a_lock_that_lasts_spools_the_trial_and_says_where(
    tmp_path: Path, hurried: EvalStore, planned: tuple[Sample, list[TrialRecord]]
) -> None:
    outcome = locked_out(hurried, planned[1][0])
    assert not outcome.saved
    assert outcome.spool is not None
    assert outcome.spool.parent == tmp_path / "spool"
    assert "\n" not in outcome.reason
    for part in ("fm.db", "locked", "close that one", str(outcome.spool)):
        assert part in outcome.reason
    assert len(hurried.pending_trials("01SPOOL")) == 3


def test_resuming_takes_the_spool_in_and_nothing_twice(
    hurried: EvalStore, planned: tuple[Sample, list[TrialRecord]]
) -> None:
    _, records = planned
    locked_out(hurried, records[0])
    locked_out(hurried, records[1])
    locked_out(hurried, records[1])
    hurried.resume_run("01SPOOL")
    assert hurried.spool_files() == ()
    data = hurried.load_run("01SPOOL")
    assert data.trials[:2] == (records[0].trial, records[1].trial)
    assert data.requests == records[0].requests + records[1].requests
    assert [trial.trial_id for trial in hurried.pending_trials("01SPOOL")] == [
        records[2].trial.trial_id
    ]


def test_importing_counts_what_was_new_known_and_damaged(
    hurried: EvalStore, planned: tuple[Sample, list[TrialRecord]]
) -> None:
    _, records = planned
    path = locked_out(hurried, records[0]).spool
    assert path is not None
    locked_out(hurried, records[1])
    hurried.record_trial(records[1])
    whole = path.read_text()
    path.write_text(whole + '{"kind": "trial", "trial": {"tri')
    outcome = hurried.import_spool(path)
    assert (outcome.imported, outcome.known, outcome.damaged) == (1, 1, 1)
    assert not path.exists()
    assert path.with_name(path.name + ".damaged").exists()


def test_conditions_and_judgements_are_spooled_too(
    hurried: EvalStore, planned: tuple[Sample, list[TrialRecord]]
) -> None:
    sample, records = planned
    condition = ConditionRow(run_id=sample.run_id, sampled_at="2026-01-01T00:00:00Z", phase="end")
    judged = DivergenceRow(
        trial_id=records[0].trial.trial_id,
        prompt_id="p1",
        reference="serial",
        position=1,
        gap=float("nan"),
    )
    law = LawRow(
        trial_id=records[0].trial.trial_id,
        position=0,
        draws=3,
        impossible_at=None,
        evidence={"2.0": 0.5},
    )
    with held(hurried.path, "BEGIN EXCLUSIVE"):
        assert not hurried.record_conditions([condition]).saved
        assert not hurried.record_divergences([judged]).saved
        assert not hurried.record_law(law).saved
    hurried.resume_run(sample.run_id)
    data = hurried.load_run(sample.run_id)
    assert data.conditions == (condition,)
    assert [row.gap for row in data.divergences] == [None]
    assert data.laws == (law,)


def test_gates_that_cannot_be_stored_are_told_not_spooled(hurried: EvalStore) -> None:
    with held(hurried.path, "BEGIN EXCLUSIVE"):
        outcome = hurried.finish_run(
            "01SPOOL", status="finished", exit_code=6, unquotable_reasons=()
        )
    assert not outcome.saved
    assert outcome.spool is None
    assert hurried.spool_files() == ()


def test_a_spool_of_another_database_is_refused_and_kept(
    tmp_path: Path, hurried: EvalStore, planned: tuple[Sample, list[TrialRecord]]
) -> None:
    path = locked_out(hurried, planned[1][0]).spool
    assert path is not None
    with (
        EvalStore.open(tmp_path / "other.db") as other,
        pytest.raises(StoreError, match=r"is not planned in this database; .*--db"),
    ):
        other.import_spool(path)
    assert path.exists()


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[]",
        "{}",
        '{"kind": "table"}',
        '{"kind": ["trial"]}',
        '{"kind": "trial", "trial": {}}',
        '{"kind": "divergence", "trial_id": "x"}',
        '{"kind": "trial", "trial": 5, "requests": [], "accepts": []}',
        '{"kind": "trial", "trial": {"trial_id": "x"}, "requests": [], "accepts": []}',
        (
            '{"kind": "trial", "trial": {"trial_id": ["x"], "run_id": "r", "status": "done"}, '
            '"requests": [], "accepts": []}'
        ),
        (
            '{"kind": "trial", "trial": {"trial_id": "x", "run_id": "r", "status": "done"}, '
            '"requests": 7, "accepts": []}'
        ),
        (
            '{"kind": "trial", "trial": {"trial_id": "x", "run_id": "r", "status": "done"}, '
            '"requests": [], "accepts": [{}]}'
        ),
        (
            '{"kind": "trial", "trial": {"trial_id": "x", "run_id": "r", "status": "done", '
            '"failed_before": "boom"}, "requests": [], "accepts": []}'
        ),
        '{"kind": "condition", "run_id": [1], "sampled_at": "x", "phase": "y"}',
        '{"kind": "condition", "run_id": 99999999999999999999, "sampled_at": "", "phase": ""}',
        '{"kind": "law", "trial_id": "q", "position": 1, "draws": 1, "evidence": {}}',
        "[" * 100_000,
    ],
    ids=lambda line: line[:60],
)
def test_a_line_that_is_no_observation_is_damaged_not_a_crash(tmp_path: Path, line: str) -> None:
    path = tmp_path / "spool.jsonl"
    path.write_text(line + "\n\n")
    found: list[SpoolLine] = []
    take_in(path, found.append)
    assert [line.kind for line in found] == [None]


def test_what_was_put_aside_as_damaged_is_never_written_over(
    tmp_path: Path, hurried: EvalStore
) -> None:
    path = tmp_path / "spool.jsonl"
    kept = []
    for text in ("first", "second", "third"):
        path.write_text(text)
        kept.append(hurried.import_spool(path).kept)
    assert [file.read_text() for file in kept if file] == ["first", "second", "third"]
    assert len(set(kept)) == 3


def test_a_file_that_another_process_took_in_meanwhile_is_no_error(
    hurried: EvalStore, planned: tuple[Sample, list[TrialRecord]]
) -> None:
    path = locked_out(hurried, planned[1][0]).spool
    assert path is not None
    hurried._connection._raw.set_trace_callback(lambda _: path.unlink(missing_ok=True))
    assert hurried.import_spool(path).imported == 1
    assert not path.exists()


def test_a_line_that_comes_while_others_are_taken_in_is_not_lost(
    hurried: EvalStore, planned: tuple[Sample, list[TrialRecord]]
) -> None:
    path = locked_out(hurried, planned[1][0]).spool
    assert path is not None
    late = []

    def write_late(_statement: str) -> None:
        if not late:
            late.append(condition(0))
            Spool.of(hurried.path).append("01SPOOL", "condition", encode(late[0]))

    hurried._connection._raw.set_trace_callback(write_late)
    assert hurried.import_spool(path).imported == 2
    assert hurried.load_run("01SPOOL").conditions == tuple(late)
    assert hurried.spool_files() == ()


WRITER = """
import sys
from pathlib import Path
from harness.store.codec import encode
from harness.store.spool import Spool
from tests.harness.store.test_spool import NUM_LINES, condition
for second in range(NUM_LINES):
    Spool.of(Path(sys.argv[1])).append("01SPOOL", "condition", encode(condition(second)))
"""


def test_a_run_that_writes_while_its_file_is_taken_in_loses_no_line(hurried: EvalStore) -> None:
    """Wherever a line comes between the reading of the others and the removal of their file."""
    with subprocess.Popen([sys.executable, "-c", WRITER, str(hurried.path)], cwd=ROOT) as writer:
        while writer.poll() is None:
            for path in hurried.spool_files():
                assert hurried.import_spool(path).damaged == 0
    assert writer.returncode == 0
    hurried.resume_run("01SPOOL")
    expected = tuple(condition(second) for second in range(NUM_LINES))
    assert hurried.load_run("01SPOOL").conditions == expected


def test_a_line_that_a_kill_cut_off_costs_no_other_line(
    hurried: EvalStore, planned: tuple[Sample, list[TrialRecord]]
) -> None:
    path = locked_out(hurried, planned[1][0]).spool
    assert path is not None
    whole = path.read_text()
    path.write_text(whole + whole[:40])
    assert locked_out(hurried, planned[1][1]).spool == path
    outcome = hurried.import_spool(path)
    assert (outcome.imported, outcome.damaged) == (2, 1)


def test_column_names_in_a_spool_file_never_reach_the_database(
    hurried: EvalStore, planned: tuple[Sample, list[TrialRecord]]
) -> None:
    path = locked_out(hurried, planned[1][0]).spool
    assert path is not None
    content = json.loads(path.read_text())
    content["trial"]["status = 'x'; DROP TABLE runs; --"] = 1
    path.write_text(json.dumps(content) + "\n")
    assert hurried.import_spool(path).imported == 1
    assert hurried.load_run("01SPOOL").trials[0] == planned[1][0].trial


def test_a_results_folder_that_refuses_sends_the_spool_to_the_temp_folder(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    hurried: EvalStore,
    planned: tuple[Sample, list[TrialRecord]],
) -> None:
    (tmp_path / "spool").write_text("a file where the folder should be")
    temp = tmp_path / "temp"
    monkeypatch.setattr(hurried, "_spool", Spool(tmp_path / "spool", temp))
    path = locked_out(hurried, planned[1][0]).spool
    assert path is not None
    assert path.parent == temp
    hurried.resume_run("01SPOOL")
    assert len(hurried.pending_trials("01SPOOL")) == 2
    assert not path.exists()


def test_when_nothing_can_be_written_the_run_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    hurried: EvalStore,
    planned: tuple[Sample, list[TrialRecord]],
) -> None:
    (tmp_path / "file").write_text("")
    nowhere = Spool(tmp_path / "file" / "spool", tmp_path / "file" / "temp")
    monkeypatch.setattr(hurried, "_spool", nowhere)
    with pytest.raises(StoreError, match=r"can be saved nowhere: .*free space"):
        locked_out(hurried, planned[1][0])


def test_a_strangers_temp_folder_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "temp").symlink_to(tmp_path / "real")
    spool = Spool(tmp_path / "beside", tmp_path / "temp")
    (tmp_path / "real" / "01X-1.jsonl").write_text("{}\n")
    assert spool.files() == ()
    (tmp_path / "beside").write_text("")
    with pytest.raises(StoreError, match="belongs to another user"):
        spool.append("01X", "trial", {})


@pytest.mark.parametrize("folder", ["/proc/fm/results", "file/results"])
def test_a_results_folder_that_cannot_be_made_is_one_line_before_the_run(
    tmp_path: Path, folder: str
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot be made .*--db") as caught:
        EvalStore.open(tmp_path / folder / "fm.db")
    assert "\n" not in str(caught.value)


def test_a_read_only_database_refuses_the_run_before_it_starts_and_can_be_read(
    tmp_path: Path, planned: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EvalStore.open(tmp_path / "fm.db") as store:
        store._connection.read(lambda raw: raw.execute("SELECT 1"))
        store._connection._raw.execute("PRAGMA query_only = ON")
        with pytest.raises(StoreError, match=r"readonly database; allow writing to it.*--db"):
            Sample(run_id="01NEW").store_in(store)
        assert store.find_run("latest").run_id == "01SPOOL"


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from harness.store import EvalStore, StoreError
from tests.harness.store.sample_run import big_sample
sample = big_sample("01FULL", 60)
records, sample.records = sample.records, []
limit = int(sys.argv[2])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
if limit < 100_000:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    with EvalStore.open(Path(sys.argv[1])) as store:
        sample.store_in(store)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        for record in records:
            outcome = store.record_trial(record)
            if not outcome.saved:
                print("spooled", outcome.reason)
                break
            print("saved")
except StoreError as error:
    print("refused", error)
"""


def run_on_full_disk(path: Path, limit: int) -> list[str]:
    """Return what a run prints on a disk that takes no file larger than `limit` bytes."""
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path), str(limit)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_a_disk_that_is_full_before_the_run_is_one_line(tmp_path: Path) -> None:
    lines = run_on_full_disk(tmp_path / "fm.db", 20_000)
    assert len(lines) == 1
    assert lines[0].startswith("refused")
    assert "fm.db" in lines[0]
    assert "--db" in lines[0]


def test_a_disk_that_fills_during_the_run_spools_and_the_run_can_be_resumed(
    tmp_path: Path,
) -> None:
    lines = run_on_full_disk(tmp_path / "fm.db", 420_000)
    assert lines[-1].startswith("spooled"), lines
    saved = lines.count("saved")
    assert saved >= 1
    with EvalStore.open(tmp_path / "fm.db") as store:
        assert store.integrity_problems() == ()
        assert len(store.pending_trials("01FULL")) == 60 - saved
        store.resume_run("01FULL")
        assert len(store.pending_trials("01FULL")) == 60 - saved - 1
        assert len(store.load_run("01FULL").requests) == 3 * (saved + 1)


def test_a_file_system_without_wal_is_tolerated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`PRAGMA journal_mode` answers `delete` there; writes then wait for readers."""
    sample = big_sample("01DELETE", 4)
    with EvalStore.open(tmp_path / "fm.db", lock_wait_s=20) as store:
        raw = store._connection._raw
        assert raw.execute("PRAGMA journal_mode = DELETE").fetchone()[0] == "delete"
        records, sample.records = sample.records, []
        sample.store_in(store)
        with held(store.path, "BEGIN") as reader:
            reader.execute("SELECT COUNT(*) FROM trials").fetchone()
            store._connection._lock_wait_s = 0.05
            assert not store.record_trial(records[0]).saved
        store._connection._lock_wait_s = 20
        assert all(store.record_trial(record).saved for record in records)
        assert store.integrity_problems() == ()
    assert count_rows(tmp_path / "fm.db", "requests") == 12
