"""EvalStore: the one way into the eval database."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from engine.errors import UnknownNameError
from harness.store import merge, reads, writes
from harness.store.codec import Column, encode, to_json
from harness.store.connection import Connection, StoreError, snapshot
from harness.store.history import Names, PastCell, past_cells
from harness.store.loaded import RunData, RunFilter, RunNames
from harness.store.merge import MergeOutcome
from harness.store.outcomes import ImportOutcome, SaveOutcome
from harness.store.record_form import TurnRow, record_form
from harness.store.replies import Reply
from harness.store.rows import (
    ComparisonRow,
    ConditionRow,
    DivergenceRow,
    GateRow,
    LawRow,
    PromotionRow,
    RequestRow,
    RunPlan,
    RunRow,
    TrialRecord,
    TrialRow,
    utc_now,
)
from harness.store.spool import Spool, SpoolLine, take_in

T = TypeVar("T")

ViewRow = tuple[Column, ...]

Writer = Callable[[sqlite3.Connection, Mapping[str, Any]], bool]

_WRITERS: dict[str, Writer] = {
    "trial": writes.write_trial,
    "turn": writes.write_turn,
    "condition": writes.write_condition,
    "divergence": writes.write_divergence,
    "law": writes.write_law,
}
"""How a spooled observation of each kind gets into the database; True when it was new."""


class EvalStore:
    """The eval database of one file; every method may be called from any thread.

    Writes of observations (record_*) do not raise for a locked, full or read-only database: they
    wait and retry, then spool to a JSONL file and say so in the outcome. Only when no spool file
    can be written either do they raise StoreError. Call them outside the measured window.
    """

    def __init__(self, connection: Connection, spool: Spool) -> None:
        self._connection = connection
        self._spool = spool
        self._run_id = ""

    @classmethod
    def open(cls, path: Path, *, lock_wait_s: float = 60.0) -> Self:
        """Open or create the database and bring it to the present schema.

        Raises:
            StoreError: the folder cannot be made, is read-only or full, or the file is no database.
        """
        return cls(Connection(path, lock_wait_s), Spool.of(path))

    @classmethod
    def open_existing(cls, path: Path, *, lock_wait_s: float = 60.0) -> Self:
        """Open a database that must be there already; StoreError when it is not."""
        if not path.is_file():
            raise StoreError(f"there is no database {path}; run `fm run` first, or name it: --db")
        return cls.open(path, lock_wait_s=lock_wait_s)

    @property
    def path(self) -> Path:
        """The database file."""
        return self._connection.path

    @property
    def journal_mode(self) -> str:
        """`wal`, or what the file system grants instead (`delete` on most network folders)."""
        return self._connection.journal_mode

    def begin_run(self, plan: RunPlan) -> None:
        """Write the run and all its trials in one transaction.

        Trials are written as given: `pending`, or `skipped` with a reason. Raises StoreError when
        the database does not take it; nothing has been measured then.
        """
        self._connection.write(lambda raw: writes.insert_plan(raw, plan))
        self._run_id = plan.run.run_id

    def resume_run(self, run_id: str) -> RunRow:
        """Take in the run's spool files, withdraw what was said of its end, and return it."""
        for path in self.spool_files(run_id):
            self.import_spool(path)
        self._connection.write(lambda raw: writes.reopen_run(raw, run_id))
        self._run_id = run_id
        return self.find_run(run_id)

    def find_run(self, reference: str) -> RunRow:
        """Return the run of `latest`, an id, or an unambiguous beginning of one.

        Raises:
            UnknownNameError: no run matches; the newest ones are listed.
            StoreError: several runs match, or there is none at all.
        """
        newest = self.list_runs(10)
        if not newest:
            raise StoreError(f"{self.path} holds no runs yet; run `fm run` first")
        if reference == "latest":
            return newest[0]
        prefix = reference.strip().upper()
        found = self._connection.read(lambda raw: reads.runs_beginning_with(raw, prefix))
        if not prefix or not found:
            known = [run.run_id for run in newest]
            raise UnknownNameError("run", reference, ["latest", *known])
        if len(found) > 1:
            ids = ", ".join(run.run_id for run in found[:10])
            raise StoreError(f"run {reference!r} is the beginning of several: {ids}; give more")
        return found[0]

    def list_runs(self, limit: int = 50, wanted: RunFilter | None = None) -> tuple[RunRow, ...]:
        """Return the newest runs, of all or of those that are wanted, newest first."""
        chosen = RunFilter() if wanted is None else wanted
        return self._connection.read(lambda raw: reads.newest_runs(raw, limit, chosen))

    def trial_counts(self, run_id: str) -> Mapping[str, int]:
        """Return how many trials a run has, by status."""
        return self._connection.read(lambda raw: reads.trial_counts(raw, run_id))

    def run_names(self, run_id: str) -> RunNames:
        """Return the models, workloads and cells of a run."""
        return self._connection.read(lambda raw: reads.run_names(raw, run_id))

    def read_view(
        self, view: str, run_id: str, take: Callable[[Sequence[str], Iterable[ViewRow]], T]
    ) -> T:
        """Return what `take` makes of the columns and rows of a view, which it reads one by one.

        Args:
            run_id: whose rows; "" for those of every run.

        Raises:
            UnknownNameError: there is no such view.
        """

        def read(raw: sqlite3.Connection) -> T:
            known = reads.views(raw)
            if view not in known:
                raise UnknownNameError("view", view, known)
            rows = reads.view_rows(raw, view, run_id)
            return take([column[0] for column in rows.description], map(tuple, rows))

        return self._connection.read(read)

    def past_cells(self, run_id: str, known: Container[Names] = ()) -> list[PastCell]:
        """Return what the cells of a run took, but for those that are known from a newer one."""
        return self._connection.read(lambda raw: past_cells(raw, run_id, known))

    def pending_trials(self, run_id: str) -> tuple[TrialRow, ...]:
        """Return the trials that still have to run, by block and order in it."""
        return self._connection.read(lambda raw: reads.pending_trials(raw, run_id))

    def load_run(self, run_id: str) -> RunData:
        """Return everything stored about a run; UnknownNameError for an id that is not there."""
        return self._known(run_id, self._connection.read(lambda raw: reads.run_data(raw, run_id)))

    def load_report(self, run_id: str) -> RunData:
        """Return what reports and gates of a run need, which is small however many requests it has.

        Single replies are read one trial at a time where they are asked for, as long as the store
        is open. Raises as load_run does.
        """
        data = self._known(
            run_id, self._connection.read(lambda raw: reads.report_data(raw, run_id))
        )
        return replace(data, read_replies=self.replies)

    def load_plan(self, run_id: str) -> RunPlan:
        """Return what a run was planned as, its trials as they are now; raises as load_run does."""
        return self._known(run_id, self._connection.read(lambda raw: reads.plan(raw, run_id)))

    def requests(self, trial: TrialRow) -> tuple[RequestRow, ...]:
        """Return all that was asked in a trial, warm-up included, by position."""
        return self._connection.read(lambda raw: reads.requests(raw, trial.trial_id))

    def replies(self, trial: TrialRow) -> tuple[Reply, ...]:
        """Return what was measured in a trial, without texts, by position.

        Nothing where the trial has been run or run again since its row was read: what it saw then
        does not go with that row.
        """
        return self._connection.read(lambda raw: reads.replies(raw, trial))

    def record_trial(
        self,
        record: TrialRecord,
        conditions: Sequence[ConditionRow] = (),
        turns: Sequence[TurnRow] = (),
    ) -> SaveOutcome:
        """Store a trial (status done, failed or skipped) with all its requests, in one transaction.

        A trial that is no longer pending is left as it is: the same record twice is stored once.
        Only a later attempt (TrialRow.attempt) takes the place of one that failed.
        After an outcome with `saved` False the run should end with exit code 6; it is resumable.

        Args:
            conditions: samples of the machine up to its end; no kill leaves a trial without them.
            turns: of other trials of the same run, which are kept in the same breath.
        """
        assert record.trial.status != "pending", "a pending trial has nothing to record"
        observed = [("trial", record_form(record)), *_kept(turns)]
        samples = [("condition", encode(row)) for row in conditions]
        return self._record(record.trial.run_id, [*observed, *samples])

    def record_turns(
        self, turns: Sequence[TurnRow], conditions: Sequence[ConditionRow] = ()
    ) -> SaveOutcome:
        """Keep turns of trials of the run that was begun or resumed last, until these are through.

        One of a trial that is through is left aside.

        Args:
            conditions: samples of the machine up to their end, in the same transaction.
        """
        samples = [("condition", encode(row)) for row in conditions]
        observed = [*_kept(turns), *samples]
        return self._record(self._run_id, observed) if observed else SaveOutcome(saved=True)

    def turns(self, run_id: str) -> tuple[TurnRow, ...]:
        """Return the turns of a run's trials that are not through, those of a trial in order."""
        return self._connection.read(lambda raw: reads.turns(raw, run_id))

    def record_conditions(self, rows: Sequence[ConditionRow]) -> SaveOutcome:
        """Store samples of the machine's state; all of one run."""
        samples = [("condition", encode(row)) for row in rows]
        return self._record(rows[0].run_id if rows else "", samples)

    def record_divergences(self, rows: Sequence[DivergenceRow]) -> SaveOutcome:
        """Store the oracle's judgement of replies of the run that was begun or resumed last."""
        return self._record(self._run_id, [("divergence", encode(row)) for row in rows])

    def record_law(self, row: LawRow) -> SaveOutcome:
        """Store what a reply's draws say, of the run that was begun or resumed last."""
        return self._record(self._run_id, [("law", encode(row))])

    def record_gates(self, run_id: str, rows: Sequence[GateRow]) -> SaveOutcome:
        """Replace the run's gates."""
        return self._conclude(lambda raw: writes.replace_gates(raw, run_id, rows))

    def record_comparisons(self, run_id: str, rows: Sequence[ComparisonRow]) -> SaveOutcome:
        """Replace the run's comparisons."""
        return self._conclude(lambda raw: writes.replace_comparisons(raw, run_id, rows))

    def record_promotion(self, row: PromotionRow) -> None:
        """Store that a run was promoted, once for the same page and reasons.

        Raises:
            StoreError: the database does not take it.
        """
        self._connection.write(lambda raw: writes.insert_promotion(raw, row))

    def promotions(self, run_id: str) -> tuple[PromotionRow, ...]:
        """Return the promotions of a run, oldest first."""
        return self._connection.read(lambda raw: reads.promotions(raw, run_id))

    def finish_run(
        self,
        run_id: str,
        *,
        status: Literal["finished", "interrupted", "failed"],
        exit_code: int,
        unquotable_reasons: Sequence[str],
    ) -> SaveOutcome:
        """Write how the run ended; quotable is one that finished and passed without a reason."""
        columns = {
            "status": status,
            "exit_code": exit_code,
            "quotable": int(status == "finished" and exit_code == 0 and not unquotable_reasons),
            "unquotable_reasons": to_json(list(unquotable_reasons)),
            "finished_at": utc_now(),
        }
        return self._conclude(lambda raw: writes.finish_run(raw, run_id, columns))

    def spool_files(self, run_id: str = "") -> tuple[Path, ...]:
        """Return the spool files that wait to be taken in, of one run or of all."""
        return self._spool.files(run_id)

    def import_spool(self, path: Path) -> ImportOutcome:
        """Take in a spool file; lines the database has already are skipped, then it is removed.

        The run it is of may go on writing to it meanwhile. A file with unreadable lines is kept,
        under the added ending `.damaged`.

        Raises:
            StoreError: it cannot be read or removed, or belongs to another database.
        """
        counts = {True: 0, False: 0, None: 0}

        def take(line: SpoolLine) -> None:
            taken = self._take_in(line.kind, line.content) if line.kind else None
            counts[taken] += 1

        kept = take_in(path, take)
        return ImportOutcome(
            imported=counts[True], known=counts[False], damaged=counts[None], kept=kept
        )

    def consistent_copy(self, destination: Path) -> None:
        """Copy the database, also during a run, into one file without side files."""
        partial = destination.with_name(f"{destination.name}.{os.getpid()}.partial")
        try:
            self._connection.copy(partial)
            partial.replace(destination)
        except OSError as error:
            raise StoreError(
                f"{destination} cannot be written ({error.strerror}); choose another file"
            ) from error
        finally:
            with suppress(OSError):
                partial.unlink()

    def export_run(self, run_id: str, destination: Path) -> None:
        """Write one run with all it refers to into a database of its own, without side files."""
        with (
            tempfile.TemporaryDirectory(prefix="fm-export-") as folder,
            type(self).open(Path(folder) / "fm.db") as alone,
        ):
            alone._connection.write_attached(self.path, lambda raw: merge.take_in(raw, [run_id]))
            alone.consistent_copy(destination)

    def merge(self, path: Path) -> MergeOutcome:
        """Take in every run of another database, which stays as it is; all of them or none.

        Twice is the same as once, and a copy taken while a run went on brings in what it had.

        Raises:
            StoreError: it cannot be read, it was written by a newer fm, or it holds a run that is
                here with other rows.
        """
        if not path.is_file():
            raise StoreError(f"there is no database {path}; name the file to merge")
        with tempfile.TemporaryDirectory(prefix="fm-merge-") as folder:
            copy = Path(folder) / "fm.db"
            snapshot(path, copy)
            try:
                # Opened once to bring it to the present schema.
                Connection(copy, lock_wait_s=1.0).close()
            except StoreError as error:
                raise StoreError(str(error).replace(str(copy), str(path))) from error
            return self._connection.write_attached(copy, merge.take_in)

    def integrity_problems(self) -> tuple[str, ...]:
        """Return what PRAGMA integrity_check and foreign_key_check find; empty is sound."""
        return self._connection.read(reads.problems)

    def close(self) -> None:
        """Close the connection; the store cannot be used after."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _known(self, run_id: str, data: T | None) -> T:
        if data is None:
            raise UnknownNameError("run", run_id, [run.run_id for run in self.list_runs(10)])
        return data

    def _record(
        self, run_id: str, observed: Sequence[tuple[str, Mapping[str, Any]]]
    ) -> SaveOutcome:
        """Write observations, each with its kind, in one transaction, else spool them."""

        def write_all(raw: sqlite3.Connection) -> None:
            for kind, content in observed:
                _WRITERS[kind](raw, content)

        outcome = self._conclude(write_all)
        if outcome.saved:
            return outcome
        files = [self._spool.append(run_id, kind, content) for kind, content in observed]
        return SaveOutcome(
            saved=False, spool=files[-1], reason=f"{outcome.reason}; kept in {files[-1]}"
        )

    def _conclude(self, change: Callable[[sqlite3.Connection], None]) -> SaveOutcome:
        try:
            self._connection.write(change)
        except StoreError as error:
            return SaveOutcome(saved=False, reason=str(error))
        return SaveOutcome(saved=True)

    def _take_in(self, kind: str, content: Mapping[str, Any]) -> bool:
        try:
            return self._connection.write(lambda raw: _WRITERS[kind](raw, content))
        except sqlite3.IntegrityError as error:
            raise StoreError(
                f"a spooled {kind} does not fit {self.path} ({error}); name the database the run "
                "was planned in with --db"
            ) from error


def _kept(turns: Iterable[TurnRow]) -> list[tuple[str, Mapping[str, Any]]]:
    return [("turn", encode(row)) for row in turns]
