"""A report reads figures, not requests: what it says does not depend on how it was loaded."""

from __future__ import annotations

import math
import random
import sqlite3
import subprocess
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from sqlite_utils import Database

from harness.judging import gates
from harness.judging.grade import conformance_lower_bound
from harness.report import build_report, plain_report, to_json, to_markdown
from harness.store import EvalStore, RunData, TrialRecord, TrialRow
from harness.store.connection import MIGRATIONS
from harness.store.index import RunIndex
from harness.store.migrations import migrations
from harness.store.replies import Reply
from tests.harness.report.full_run import failed_run, full_run
from tests.harness.results.published import database, steady_run
from tests.harness.store.sample_run import Sample, reply

ROOT = Path(__file__).parents[3]
SAMPLES = {"full": full_run, "short": lambda: full_run(blocks=3), "failed": failed_run}


def texts(data: RunData) -> tuple[str, ...]:
    report = build_report(data)
    return to_markdown(report), to_json(report), plain_report(report)


@pytest.mark.parametrize("make", SAMPLES.values(), ids=SAMPLES.keys())
def test_a_report_without_single_requests_is_the_report_with_them(
    tmp_path: Path, make: Callable[[], Sample]
) -> None:
    sample = make()
    with EvalStore.open(tmp_path / "fm.db") as store:
        sample.store_in(store)
        store.record_gates(sample.run_id, gates.evaluate(store.load_run(sample.run_id)))
        lean, whole = store.load_report(sample.run_id), store.load_run(sample.run_id)
    assert lean.requests == ()
    assert whole.requests
    assert texts(lean) == texts(whole)


@pytest.mark.parametrize("make", SAMPLES.values(), ids=SAMPLES.keys())
def test_gates_say_the_same_of_replies_that_are_read_one_trial_at_a_time(
    tmp_path: Path, make: Callable[[], Sample]
) -> None:
    sample = make()
    with EvalStore.open(tmp_path / "fm.db") as store:
        sample.store_in(store)
        lean, whole = store.load_report(sample.run_id), store.load_run(sample.run_id)
        assert not lean.gates
        assert gates.evaluate(lean) == gates.evaluate(whole)
        assert texts(lean) == texts(whole)


def test_gates_hold_the_replies_of_one_block_at_a_time(tmp_path: Path) -> None:
    """What is kept of a reply is a digest; a run of any length fits into memory."""
    sample = full_run(blocks=9)
    held: set[int] = set()
    most = 0

    def counted(trial: TrialRow) -> Sequence[Reply]:
        nonlocal most
        replies = [Counted(reply, held) for reply in read(trial)]
        most = max(most, len(held))
        return cast(Sequence[Reply], replies)

    with EvalStore.open(tmp_path / "fm.db") as store:
        sample.store_in(store)
        data = store.load_report(sample.run_id)
        read = data.read_replies
        assert read is not None
        expected = gates.evaluate(data)
        assert gates.evaluate(replace(data, read_replies=counted)) == expected
    blocks = Counter(
        (trial.block, trial.model, trial.workload)
        for record in sample.records
        for trial in [record.trial]
        for request in record.requests
        if request.phase == "measured"
    )
    # The block that is read, and the one that was read before it.
    assert most <= 2 * max(blocks.values()) < len(blocks) * min(blocks.values())
    assert not held


def test_replies_of_an_attempt_are_not_told_to_who_read_its_trial_before(tmp_path: Path) -> None:
    """A report of a run that goes on meanwhile must not mix one attempt with another."""
    sample = failed_run()
    record = next(item for item in sample.records if item.trial.status == "failed")
    attempt = replace(record.trial, status="done", failed_before=(record.trial.reason,), reason="")
    requests = (reply(trial_id=attempt.trial_id),)
    with EvalStore.open(tmp_path / "fm.db") as store:
        sample.store_in(store)
        before = RunIndex(store.load_report(sample.run_id))
        lost = before.heard(record.trial)
        assert len(lost) == len(record.requests)
        assert store.record_trial(TrialRecord(trial=attempt, requests=requests)).saved
        assert before.heard(record.trial) == ()
        (told,) = RunIndex(store.load_report(sample.run_id)).heard(attempt)
    assert told.token_ids == requests[0].token_ids


class Counted:
    """A reply that is known to be held as long as anybody has it."""

    def __init__(self, reply: Reply, held: set[int]) -> None:
        self._reply = reply
        held.add(id(self))
        weakref.finalize(self, held.discard, id(self))

    def __getattr__(self, name: str) -> object:
        return getattr(self._reply, name)


def test_nobody_takes_requests_that_cannot_be_read_any_more_for_none(tmp_path: Path) -> None:
    path = database(tmp_path, steady_run())
    with EvalStore.open(path) as store:
        data = store.load_report(store.find_run("latest").run_id)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        list(RunIndex(data).measured(data.trials))


def test_the_order_in_which_trials_were_stored_does_not_show(tmp_path: Path) -> None:
    """Resumed, merged and spooled runs store the same rows in other orders."""
    found = []
    for name in ("one", "two"):
        sample = full_run()
        if name == "two":
            random.Random(3).shuffle(sample.records)
        (tmp_path / name).mkdir()
        found.append(texts(sample.load(tmp_path / name)))
    assert found[0] == found[1]


def test_a_merged_run_gives_the_same_bytes(tmp_path: Path) -> None:
    """Merged rows have other row ids, and models and cells of other runs lie between them."""
    sample = full_run()
    for folder in ("ours", "theirs"):
        (tmp_path / folder).mkdir()
    ours = database(tmp_path / "ours", steady_run("01M8R0000000000000000000Z9"))
    theirs = database(tmp_path / "theirs", sample)
    with EvalStore.open(ours) as store:
        store.merge(theirs)
        merged = texts(replace_times(store.load_report(sample.run_id)))
    with EvalStore.open(theirs) as store:
        assert texts(replace_times(store.load_report(sample.run_id))) == merged


def replace_times(data: RunData) -> RunData:
    """Leave out when the run was concluded, which no report tells."""
    return replace(data, run=replace(data.run, finished_at=None))


@pytest.mark.parametrize("make", SAMPLES.values(), ids=SAMPLES.keys())
def test_an_old_database_gives_the_report_of_a_new_one(
    tmp_path: Path, make: Callable[[], Sample]
) -> None:
    """A database written before the views were made quick is brought forward with its rows."""
    sample = make()
    expected = texts(sample.load(tmp_path))
    old = tmp_path / "old.db"
    raw = Database(old)
    migrations.apply(raw, stop_before=MIGRATIONS[4:])
    raw.conn.execute("ATTACH DATABASE ? AS new", (str(tmp_path / "fm.db"),))
    tables = "environments models workloads cells runs trials requests accept_pos divergences"
    for table in [*tables.split(), "conditions"]:
        names = ", ".join(column.name for column in raw[table].columns)
        raw.conn.execute(f"INSERT INTO {table} ({names}) SELECT {names} FROM new.{table}")
    raw.conn.commit()
    raw.close()
    with EvalStore.open(old) as store:
        assert texts(store.load_report(sample.run_id)) == expected


def test_reports_load_neither_a_validator_nor_a_model_library() -> None:
    """Each takes a second or more to import, and a report needs none of what they do."""
    script = (
        "import sys, harness.report, harness.results.differences, harness.results\n"
        "print(sorted({'jsonschema', 'mlx_lm', 'transformers', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(("ok", "n"), [(1, 3), (30, 32), (299, 300), (900, 3000), (2999, 3000)])
def test_a_lower_bound_leaves_five_percent_above_it(ok: int, n: int) -> None:
    """The sum is cut where its terms are lost in rounding; here every term is added."""
    bound = conformance_lower_bound(ok, n)
    tail = math.fsum(
        math.exp(
            math.lgamma(n + 1)
            - math.lgamma(bad + 1)
            - math.lgamma(n - bad + 1)
            + bad * math.log1p(-bound)
            + (n - bad) * math.log(bound)
        )
        for bad in range(n - ok + 1)
    )
    assert tail == pytest.approx(0.05, rel=1e-9)


def test_the_figures_of_requests_are_read_from_an_index_alone(tmp_path: Path) -> None:
    """Texts and token ids are most of a database: no figure of a large run reads past them."""
    path = database(tmp_path, steady_run())
    raw = sqlite3.connect(path)
    for view in ("v_figure", "v_cell", "v_replies", "v_composition"):
        plan = [
            row[3]
            for row in raw.execute(f"EXPLAIN QUERY PLAN SELECT * FROM {view} WHERE run_id = 'x'")
        ]
        reads = [line for line in plan if " r " in f"{line} "]
        assert reads, view
        assert all("COVERING INDEX requests_figures" in line for line in reads), (view, reads)
    raw.close()
