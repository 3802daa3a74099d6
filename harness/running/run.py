"""The run loop: trials block by block, each committed by itself, resumable at any point.

A trial that fails is recorded and the run goes on. The loop ends early when a person interrupts it
or when the database stops taking rows; what was measured until then is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Literal

from engine.errors import FmError, bug_line
from harness.planning.matrix import PlannedTrial
from harness.running.interrupts import interruptible, uninterrupted
from harness.running.partings import Finished, find_partings, find_sampled
from harness.running.progress import Progress, TimeLeft
from harness.store import (
    ConditionRow,
    EvalStore,
    SaveOutcome,
    TrialRecord,
    TrialRow,
    utc_now,
)
from harness.trials.clock import Clock, monotonic
from harness.trials.target import Target, TrialJob

Ending = Literal["finished", "interrupted", "spooled"]


@dataclass(frozen=True, slots=True)
class Planned:
    """A trial of the plan with its row in the database."""

    trial: PlannedTrial
    row: TrialRow

    @property
    def label(self) -> str:
        """What a person reads while it runs."""
        pair = self.trial.pair
        return f"{pair.model} {pair.workload.name} {pair.cell.name} block {self.trial.block + 1}"

    @property
    def key(self) -> tuple[str, ...]:
        """Trials of one key take about the same time."""
        pair = self.trial.pair
        return (pair.model, pair.workload.name, pair.cell.name)

    @property
    def num_tokens(self) -> int:
        """Most tokens it can emit."""
        return len(self.trial.prompts) * self.trial.pair.max_tokens

    @property
    def weight(self) -> float:
        """Its expected time in unknown units: decode steps at most."""
        return self.num_tokens / self.trial.pair.cell.rows


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the loop ended; `save` is what the database said when it stopped taking rows."""

    ending: Ending
    save: SaveOutcome | None = None


class _SpooledError(Exception):
    def __init__(self, save: SaveOutcome) -> None:
        super().__init__(save.reason)
        self.save = save


@dataclass(slots=True)
class RunLoop:
    """Runs planned trials on a target and stores what they saw.

    Args:
        observe: reads the machine's state for one trial; called outside any measured window.
        sampled: gives the samples that were taken in the background since its last call.
    """

    store: EvalStore
    target: Target
    progress: Progress
    observe: Callable[[TrialRow], ConditionRow]
    clock: Clock = monotonic
    time_left: TimeLeft = field(default_factory=TimeLeft)
    sampled: Callable[[], Sequence[ConditionRow]] = tuple

    def run(self, planned: Sequence[Planned], earlier: Sequence[Finished]) -> Outcome:
        """Run the trials of a run that are to do.

        Args:
            planned: the trials still to do, in order, those of a model and workload together.
            earlier: trials of the same run that were done before, for the identity check.
        """
        pending = list(planned)
        self.progress.begin(None, len(pending))
        try:
            with interruptible():
                keys = [item.key[:2] for item in earlier] + [item.key[:2] for item in planned]
                for key in dict.fromkeys(keys):
                    known = [item for item in earlier if item.key[:2] == key]
                    group = [item for item in planned if item.key[:2] == key]
                    finished = known + self._run_group(key[0], group, pending)
                    self._judge(key[0], finished)
        except KeyboardInterrupt:
            return Outcome("interrupted")
        except _SpooledError as stop:
            return Outcome("spooled", stop.save)
        finally:
            self.progress.close()
        return Outcome("finished")

    def _run_group(
        self, model: str, group: Sequence[Planned], pending: list[Planned]
    ) -> list[Finished]:
        """Run the trials of one model on one workload; return those that ran to their end."""
        finished: list[Finished] = []
        broken = self._open(model) if group else ""
        for item in group:
            self.progress.trial(item.label, item.num_tokens)
            started_s = self.clock()
            record = _failed(item.row, broken) if broken else self._attempt(item)
            seconds = self.clock() - started_s
            with uninterrupted():
                conditions = [*self.sampled(), self.observe(record.trial)]
                self._save(self.store.record_trial(record, conditions))
            pending.remove(item)
            if record.trial.status == "done":
                finished.append(Finished(item.trial.pair, record.trial))
                self.time_left.record(item.key, item.weight, seconds)
            self.progress.done(item.label, _told(record), self._estimate(pending))
        return finished

    def _open(self, model: str) -> str:
        """Return why the model cannot be opened, "" when it is open."""
        try:
            self.target.open(model)
        except FmError as error:
            return str(error)
        return ""

    def _attempt(self, item: Planned) -> TrialRecord:
        """Run one trial; whatever goes wrong in it becomes its record."""
        pair = item.trial.pair
        row = replace(item.row, started_at=utc_now())
        job = TrialJob(
            trial=row,
            cell=pair.cell,
            workload=pair.workload,
            prompts=item.trial.prompts,
            max_tokens=pair.max_tokens,
            sampling=item.trial.sampling,
        )
        try:
            record = self.target.run(job, self.progress.tokens)
        except FmError as error:
            record = _failed(row, str(error))
        except Exception as error:  # noqa: BLE001  # the run loop records and goes on
            record = _failed(row, bug_line(error))
        # A side of `fm gate` may be of an fm that knows of one attempt only.
        trial = replace(record.trial, finished_at=utc_now(), failed_before=row.failed_before)
        return replace(record, trial=trial)

    def _judge(self, model: str, finished: Sequence[Finished]) -> None:
        """Store where replies part from their reference or their law, as the oracle sees it.

        A parting that could not be judged stays unexplained, which the identity gate of a run that
        came to its end fails; draws that could not be judged leave the law gate incomplete.
        """
        partings = find_partings(finished, self.store.replies)
        sampled = tuple(find_sampled(finished, self.store.requests))
        first = tuple(islice(partings, 1))
        if (first or sampled) and self._open(model):
            return
        for parting in chain(first, partings):
            try:
                rows = self.target.judge(parting)
            except Exception as error:  # noqa: BLE001  # the run loop records and goes on
                self.progress.note(f"{parting.prompt.id} was not judged: {bug_line(error)}")
                continue
            if rows:
                self._save(self.store.record_divergences(rows))
        for reply in sampled:
            try:
                law = self.target.weigh(reply)
            except Exception as error:  # noqa: BLE001  # the run loop records and goes on
                self.progress.note(f"{reply.prompt.id} was not judged: {bug_line(error)}")
                continue
            self._save(self.store.record_law(law))

    def _save(self, outcome: SaveOutcome) -> None:
        if not outcome.saved:
            raise _SpooledError(outcome)

    def _estimate(self, pending: Iterable[Planned]) -> float | None:
        return self.time_left.estimate((item.key, item.weight) for item in pending)


def _failed(row: TrialRow, reason: str) -> TrialRecord:
    return TrialRecord(trial=replace(row, status="failed", reason=reason))


def _told(record: TrialRecord) -> str:
    trial = record.trial
    if trial.status != "done":
        return f"failed ({trial.reason})"
    if not trial.aggregate_tokens or not trial.aggregate_s:
        return f"{trial.tokens} tokens"
    return f"{trial.tokens} tokens, {trial.aggregate_tokens / trial.aggregate_s:.1f} tok/s"
