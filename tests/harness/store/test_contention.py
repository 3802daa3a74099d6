"""No observation is lost or doubled by locks, threads, other processes or kill -9."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.store import EvalStore, StoreError, TrialRecord
from tests.harness.store.sample_run import big_sample
from tests.waiting import WAIT_S

ROOT = Path(__file__).parents[3]

WRITER = """
import sys
from pathlib import Path
from harness.store import EvalStore
from tests.harness.store.sample_run import big_sample
sample = big_sample(sys.argv[2], int(sys.argv[3]))
with EvalStore.open(Path(sys.argv[1])) as store:
    sample.store_in(store)
"""

RUNNER = """
import sys
from pathlib import Path
from harness.store import EvalStore
from tests.harness.store.sample_run import big_sample
sample = big_sample(sys.argv[2], int(sys.argv[3]))
records = {record.trial.trial_id: record for record in sample.records}
with EvalStore.open(Path(sys.argv[1])) as store:
    store.resume_run(sample.run_id)
    print("ready", flush=True)
    for trial in store.pending_trials(sample.run_id):
        assert store.record_trial(records[trial.trial_id]).saved
        print(trial.trial_id, flush=True)
"""


def count_rows(path: Path, table: str) -> int:
    raw = sqlite3.connect(path)
    try:
        return int(raw.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0])
    finally:
        raw.close()


def start(script: str, path: Path, run_id: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, str(path), run_id, str(count)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> list[str]:
    output, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    return output.split()


@contextmanager
def held(path: Path, statement: str) -> Iterator[sqlite3.Connection]:
    raw = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    raw.execute(statement)
    try:
        yield raw
    finally:
        raw.close()


def test_a_reader_that_keeps_its_read_open_does_not_stop_a_run(tmp_path: Path) -> None:
    path = tmp_path / "fm.db"
    big_sample("01READ", 1).load(tmp_path)
    with held(path, "BEGIN") as reader, EvalStore.open(path, lock_wait_s=0.2) as store:
        before = reader.execute("SELECT COUNT(*) FROM trials").fetchone()
        big_sample("01MORE", 20).store_in(store)
        assert reader.execute("SELECT COUNT(*) FROM trials").fetchone() == before
    assert count_rows(path, "requests") == 63


def test_a_lock_of_a_second_is_waited_out(tmp_path: Path) -> None:
    sample = big_sample("01WAIT", 2)
    with EvalStore.open(tmp_path / "fm.db", lock_wait_s=120) as store:
        sample.store_in(store)
        with held(tmp_path / "fm.db", "BEGIN EXCLUSIVE") as locker:
            let_go = threading.Event()

            def release() -> None:
                let_go.set()
                locker.execute("ROLLBACK")

            threading.Timer(1.0, release).start()
            big_sample("01LATE", 1).store_in(store)
            assert let_go.is_set()
    assert count_rows(tmp_path / "fm.db", "trials") == 3


def test_eight_threads_of_one_run_lose_nothing(tmp_path: Path) -> None:
    sample = big_sample("01THREADS", 80)
    records, sample.records = sample.records, []
    with EvalStore.open(tmp_path / "fm.db") as store:
        sample.store_in(store)
        with ThreadPoolExecutor(8) as pool:
            outcomes = list(pool.map(store.record_trial, records))
        assert all(outcome.saved for outcome in outcomes)
        assert store.pending_trials(sample.run_id) == ()
        assert store.integrity_problems() == ()
    assert count_rows(tmp_path / "fm.db", "requests") == 240


def test_two_processes_that_write_500_rows_each_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "fm.db"
    # 84 trials with 3 requests, 2 accept rows and the trial itself: 504 rows a process.
    writers = [start(WRITER, path, f"01WRITER{number}", 84) for number in range(2)]
    for writer in writers:
        finish(writer)
    assert count_rows(path, "trials") == 168
    assert count_rows(path, "requests") == 504
    assert count_rows(path, "accept_pos") == 336
    with EvalStore.open(path) as store:
        assert store.integrity_problems() == ()


def test_kill_9_at_random_points_loses_and_doubles_nothing(tmp_path: Path) -> None:
    path, count, run_id = tmp_path / "fm.db", 400, "01KILLED"
    whole = big_sample(run_id, count)
    expected, whole.records = whole.records, []
    with EvalStore.open(path) as store:
        whole.store_in(store)
    rng, told = random.Random(5), set[str]()
    for _ in range(4):
        process = start(RUNNER, path, run_id, count)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(rng.uniform(0.0, 0.25))
        os.kill(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        told |= {line for line in output.splitlines(keepends=True) if line.endswith("\n")}
        with EvalStore.open(path) as store:
            assert store.integrity_problems() == ()
            done = {trial.trial_id for trial in store.load_run(run_id).trials if trial.wall_s}
        assert {line.strip() for line in told} <= done
    finish(start(RUNNER, path, run_id, count))
    with EvalStore.open(path) as store:
        data = store.load_run(run_id)
    assert data.trials == tuple(record.trial for record in expected)
    assert data.requests == tuple(row for record in expected for row in record.requests)
    assert data.accepts == tuple(row for record in expected for row in record.accepts)


def test_a_transaction_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    sample = big_sample("01HALF", 1)
    record, sample.records = sample.records[0], []
    twice = TrialRecord(trial=record.trial, requests=record.requests + record.requests[:1])
    with EvalStore.open(tmp_path / "fm.db") as store:
        sample.store_in(store)
        with pytest.raises(sqlite3.IntegrityError):
            store.record_trial(twice)
        assert len(store.pending_trials(sample.run_id)) == 1
        assert store.load_run(sample.run_id).requests == ()
        assert store.record_trial(record).saved


def test_a_copy_made_during_a_run_holds_every_row_in_one_file(tmp_path: Path) -> None:
    sample = big_sample("01COPY", 5)
    with EvalStore.open(tmp_path / "fm.db") as store:
        sample.store_in(store)
        with EvalStore.open(tmp_path / "fm.db") as writer:
            late = big_sample("01LATE", 1)
            late.store_in(writer)
            store.consistent_copy(tmp_path / "copy.db")
    assert {path.name for path in tmp_path.iterdir()} == {"fm.db", "copy.db"}
    with EvalStore.open_existing(tmp_path / "copy.db") as copy:
        assert copy.load_run("01COPY") is not None
        assert copy.load_run("01LATE").requests == late.records[0].requests
        assert copy.integrity_problems() == ()


def test_a_copy_to_an_impossible_place_is_one_clear_line(tmp_path: Path) -> None:
    big_sample("01COPY", 1).load(tmp_path)
    with (
        EvalStore.open(tmp_path / "fm.db") as store,
        pytest.raises(StoreError, match="nowhere"),
    ):
        store.consistent_copy(tmp_path / "nowhere" / "copy.db")
