"""The run loop: trials block by block, each committed by itself, resumable at any point.

The trials of a block take turns, one wave of requests each. What the turns of a trial saw is kept
beside the plan until the trial is through, so that a killed run goes on between two turns.

A trial that fails is recorded and the run goes on. The loop ends early when a person interrupts it
or when the database stops taking rows; what was measured until then is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, islice
from typing import Literal

from engine.errors import FmError, bug_line
from harness.planning.matrix import PlannedTrial
from harness.running.interrupts import interruptible, last_words, uninterrupted
from harness.running.partings import Finished, find_partings, find_sampled
from harness.running.progress import Progress, Standing, TimeLeft
from harness.store import (
    ConditionRow,
    EvalStore,
    SaveOutcome,
    TrialRecord,
    TrialRow,
    TurnRow,
    record_form,
    utc_now,
)
from harness.trials.clock import Clock, monotonic
from harness.trials.target import Target, TrialJob
from harness.trials.turns import has_replay, joined

SAVED_EVERY_S = 10.0
"""After so long turns of trials that are not through are kept: what a kill may cost. Each by itself
would be a write to the disk after every reply, on a GPU several a second."""

Ending = Literal["finished", "interrupted", "spooled"]


@dataclass(frozen=True, slots=True)
class Planned:
    """A trial of the plan with its row in the database.

    Args:
        told: records of its turns that an earlier life of the run was through with.
    """

    trial: PlannedTrial
    row: TrialRow
    told: tuple[TrialRecord, ...] = ()

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
    def num_turns(self) -> int:
        """How many turns it has in all."""
        return len(self.trial.places)

    @property
    def num_tokens(self) -> int:
        """Most tokens a turn can emit."""
        return len(self.trial.prompts_of(0)) * self.trial.pair.max_tokens

    @property
    def weight(self) -> float:
        """Expected time of a turn in unknown units: decode steps at most."""
        return self.num_tokens / self.trial.pair.cell.rows

    @property
    def turns_left(self) -> int:
        """How many turns it still has."""
        return self.num_turns - len(self.told)


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
class _Underway:
    """A trial whose turns are being run."""

    item: Planned
    told: list[TrialRecord]

    def is_through(self) -> bool:
        """True when there is nothing more to run of it."""
        is_broken = bool(self.told) and self.told[-1].trial.status != "done"
        return is_broken or len(self.told) == self.item.num_turns


@dataclass(slots=True)
class RunLoop:
    """Runs planned trials on a target and stores what they saw.

    Args:
        observe: reads the machine's state for one trial; called outside any measured window.
        sampled: gives the samples that were taken in the background since its last call.
        whereabouts: of this machine and code, kept with each turn.
    """

    store: EvalStore
    target: Target
    progress: Progress
    observe: Callable[[TrialRow], ConditionRow]
    clock: Clock = monotonic
    time_left: TimeLeft = field(default_factory=TimeLeft)
    sampled: Callable[[], Sequence[ConditionRow]] = tuple
    whereabouts: str = ""
    _through: float = 0.0
    _unsaved: list[TurnRow] = field(default_factory=list)
    _saved_s: float = 0.0

    def run(self, planned: Sequence[Planned], earlier: Sequence[Finished]) -> Outcome:
        """Run the trials of a run that are to do.

        Args:
            planned: the trials still to do, in order, those of a model and workload together.
            earlier: trials of the same run that were done before, for the identity check.
        """
        for item in planned:
            self.time_left.expect(item.key, item.weight * item.turns_left)
            self._through += len(item.told) / item.num_turns
        self._saved_s = self.clock()
        self.progress.begin(None, len(planned))
        try:
            with interruptible():
                keys = [item.key[:2] for item in earlier] + [item.key[:2] for item in planned]
                for key in dict.fromkeys(keys):
                    known = [item for item in earlier if item.key[:2] == key]
                    group = [item for item in planned if item.key[:2] == key]
                    finished = known + self._run_group(key[0], group)
                    self._judge(key[0], finished)
        except KeyboardInterrupt:
            # A signal that has struck is not struck again: what is left to do is to say so.
            with last_words():
                self._keep()
            return Outcome("interrupted")
        except _SpooledError as stop:
            return Outcome("spooled", stop.save)
        finally:
            self.progress.close()
        return Outcome("finished")

    def _run_group(self, model: str, group: Sequence[Planned]) -> list[Finished]:
        """Run the trials of one model on one workload; return those that ran to their end."""
        broken = self._open(model) if group else ""
        finished: list[Finished] = []
        for _, items in groupby(group, key=lambda item: item.trial.block):
            finished += self._run_block(tuple(items), broken)
        return finished

    def _run_block(self, items: Sequence[Planned], broken: str) -> list[Finished]:
        """Run the trials of a block, turn by turn.

        Args:
            broken: why none of them can run, "" when they can.
        """
        finished: list[Finished] = []
        trials = [_Underway(item, list(item.told)) for item in items]
        places = sorted(
            (place, index)
            for index, item in enumerate(items)
            for place in item.trial.places[len(item.told) :]
        )
        for _, index in places:
            trial = trials[index]
            if trial.is_through():
                continue
            self._take_turn(trial, broken)
            if trial.is_through():
                finished += self._conclude(trial)
            else:
                self._note_turn(trial)
        return finished

    def _take_turn(self, trial: _Underway, broken: str) -> None:
        item = trial.item
        share = 1 / item.num_turns
        self.progress.turn(item.label, item.num_tokens, share, self._standing())
        started_s = self.clock()
        record = _failed(item.row, broken) if broken else self._attempt(trial)
        seconds = self.clock() - started_s
        trial.told.append(replace(record, trial=replace(record.trial, turns_s=seconds)))
        if record.trial.status == "done":
            self.time_left.record(item.key, item.weight, seconds)
        else:
            turns = item.num_turns - len(trial.told) + 1
            self.time_left.drop(item.key, item.weight * turns)
            share *= turns
        self._through += share

    def _conclude(self, trial: _Underway) -> list[Finished]:
        """Store a trial that is through; return it when it ran to its end."""
        item, record = trial.item, joined(trial.told)
        with uninterrupted():
            conditions = [*self.sampled(), self.observe(record.trial)]
            kept = [row for row in self._unsaved if row.trial_id != record.trial.trial_id]
            self._unsaved, self._saved_s = [], self.clock()
            self._save(self.store.record_trial(record, conditions, kept))
        seconds = record.trial.turns_s or 0.0
        self.progress.done(item.label, _told(record), seconds, self._standing())
        is_done = record.trial.status == "done"
        return [Finished(item.trial.pair, record.trial)] if is_done else []

    def _standing(self) -> Standing:
        return Standing(self._through, self.time_left.estimate())

    def _note_turn(self, trial: _Underway) -> None:
        """Keep what a turn of a trial saw that has further ones, together with others."""
        row, record = trial.item.row, trial.told[-1]
        with uninterrupted():
            self._unsaved.append(
                TurnRow(
                    trial_id=row.trial_id,
                    attempt=row.attempt,
                    turn=len(trial.told) - 1,
                    whereabouts=self.whereabouts,
                    record=record_form(record),
                )
            )
            if self.clock() - self._saved_s >= SAVED_EVERY_S:
                self._save(self._keep())

    def _keep(self) -> SaveOutcome:
        """Keep turns together with what the machine did meanwhile: neither is kept without."""
        unsaved, self._unsaved, self._saved_s = self._unsaved, [], self.clock()
        return self.store.record_turns(unsaved, self.sampled())

    def _open(self, model: str) -> str:
        """Return why the model cannot be opened, "" when it is open."""
        try:
            self.target.open(model)
        except FmError as error:
            return str(error)
        return ""

    def _attempt(self, trial: _Underway) -> TrialRecord:
        """Run a trial's next turn; whatever goes wrong in it becomes its record."""
        item, turn = trial.item, len(trial.told)
        pair = item.trial.pair
        row = replace(item.row, started_at=utc_now())
        job = TrialJob(
            trial=row,
            cell=pair.cell,
            workload=pair.workload,
            prompts=item.trial.prompts_of(turn),
            max_tokens=pair.max_tokens,
            sampling=item.trial.sampling,
            turn=turn,
            num_turns=item.num_turns,
            wants_replay=not has_replay(trial.told),
        )
        try:
            record = self.target.run(job, self.progress.tokens)
        except FmError as error:
            record = _failed(row, str(error))
        except Exception as error:  # noqa: BLE001  # the run loop records and goes on
            record = _failed(row, bug_line(error))
        # A side of `fm gate` may be of an fm that knows of one attempt only.
        ended = replace(record.trial, finished_at=utc_now(), failed_before=row.failed_before)
        return replace(record, trial=ended)

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


def _failed(row: TrialRow, reason: str) -> TrialRecord:
    return TrialRecord(trial=replace(row, status="failed", reason=reason))


def _told(record: TrialRecord) -> str:
    trial = record.trial
    if trial.status != "done":
        return f"failed ({trial.reason})"
    if not trial.aggregate_tokens or not trial.aggregate_s:
        return f"{trial.tokens} tokens"
    return f"{trial.tokens} tokens, {trial.aggregate_tokens / trial.aggregate_s:.1f} tok/s"
