"""The correctness gates of a run, from its stored rows, each of which is read once.

A gate that saw nothing is incomplete, never green; one that does not apply is absent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from harness import exit_codes
from harness.judging.cell_gates import CELL_GATES, SHOWN_PROBLEMS, CellGate, summary
from harness.store.index import Place, RunIndex
from harness.store.loaded import BlockRow, RunData
from harness.store.rows import GateRow, TrialRow

NOTHING = "nothing was planned that can run"


def evaluate(data: RunData) -> tuple[GateRow, ...]:
    """Return every gate that applies to a run, in the order reports print them."""
    hearing = _Hearing.of(RunIndex(data))
    hearing.hear()
    return (*hearing.rows(), completeness(hearing.index, hearing.asked))


def exit_code(
    gates: Sequence[GateRow], *, is_interrupted: bool = False, is_unsaved: bool = False
) -> int:
    """Return what `fm run` exits with: 130, else the worst of 3, 6 and 0.

    Args:
        is_interrupted: the user stopped the run; it can be resumed.
        is_unsaved: something was spooled, or could not be run, and waits for `--resume`.
    """
    if is_interrupted:
        return exit_codes.INTERRUPTED
    statuses = {gate.status for gate in gates}
    if "fail" in statuses:
        return exit_codes.CORRECTNESS
    if is_unsaved or "incomplete" in statuses or not statuses:
        return exit_codes.INCOMPLETE
    return exit_codes.PASS


def completeness(index: RunIndex, asked: Mapping[str, Asked]) -> GateRow:
    """Judge that all that was planned ran, each with its baseline and a finite speed.

    Args:
        asked: what each trial had, by id.
    """
    planned = [trial for trial in index.data.trials if trial.status != "skipped"]
    done = sum(trial.status == "done" for trial in planned)
    gaps = [gap for place in index.places() for gap in _gaps(index, place, asked)]
    gaps += _models_without_result(index)
    unfilled = [
        trial
        for trial in planned
        if trial.status == "done" and trial.was_never_full and _is_timed(index, trial)
    ]
    gaps += _without_any_speed(index, unfilled)
    notes = list(_remarks(index, planned, unfilled))
    return GateRow(
        run_id=index.data.run.run_id,
        name="completeness",
        status="incomplete" if gaps or not planned else "pass",
        observed=done / len(planned) if planned else None,
        n=len(planned),
        detail=summary(gaps or (notes if planned else [NOTHING])),
    )


ORDER = (*CELL_GATES, "completeness")
"""Names of all gates, in the order in which reports print them."""


@dataclass(frozen=True, slots=True)
class Asked:
    """How many measured requests a trial had, and how many of them failed."""

    requests: int
    failed: int


@dataclass(slots=True)
class _Hearing:
    """The gates of all cells, to which the replies of a run are told, one block at a time.

    Args:
        gates: those that apply to each place that was not skipped, by name.
        asked: what each trial had, by id.
    """

    index: RunIndex
    gates: dict[Place, dict[str, CellGate]]
    asked: dict[str, Asked] = field(default_factory=dict)

    @classmethod
    def of(cls, index: RunIndex) -> _Hearing:
        """Return the gates of a run, which have seen nothing yet."""
        return cls(
            index,
            {
                place: {
                    name: gate
                    for name, begin in CELL_GATES.items()
                    if (gate := begin(index, place)) is not None
                }
                for place in index.places()
                if not index.is_skipped(place)
            },
        )

    def hear(self) -> None:
        """Tell every gate what there is."""
        for block in self.index.blocks():
            replies = {trial.trial_id: self.index.heard(trial) for trial in block}
            beside = {
                self.index.place_of(trial).cell: replies[trial.trial_id]
                for trial in block
                if trial.status == "done"
            }
            for trial in block:
                heard = replies[trial.trial_id]
                failed = sum(reply.status != "ok" for reply in heard)
                self.asked[trial.trial_id] = Asked(len(heard), failed)
                for gate in self.gates.get(self.index.place_of(trial), {}).values():
                    gate.see(trial, heard, beside)

    def rows(self) -> Iterator[GateRow]:
        """Yield the verdicts, gate by gate."""
        for name in CELL_GATES:
            for gates in self.gates.values():
                row = gates[name].row() if name in gates else None
                if row is not None:
                    yield row


def _gaps(index: RunIndex, place: Place, asked: Mapping[str, Asked]) -> Iterator[str]:
    """Yield what is missing at one place, one line each."""
    cell = index.cell(place)
    name = f"{place.model} {place.workload} {place.cell}"
    baseline = {t.block for t in index.trials(place.other(cell.baseline or ""), "done")}
    for trial in index.trials(place):
        where = f"{name} block {trial.block + 1}"
        if trial.status in ("pending", "failed"):
            yield f"{where} {trial.status}{': ' + trial.reason if trial.reason else ''}"
        if trial.status != "done":
            continue
        had = asked[trial.trial_id]
        if not had.requests:
            yield f"{where} measured no request"
        if had.failed:
            yield f"{where}: {had.failed} of {had.requests} requests failed"
        has_speed = _speed(trial, index.timed(trial)) is not None
        if cell.kind != "routing" and not has_speed and not trial.was_never_full:
            yield f"{where} has no speed"
        if cell.baseline is not None and trial.block not in baseline:
            yield f"{where} has no baseline {cell.baseline}"


def _remarks(
    index: RunIndex, planned: Sequence[TrialRow], unfilled: Sequence[TrialRow]
) -> Iterator[str]:
    """Yield what is to be known of trials that are complete."""
    if unfilled:
        yield f"{_named(index, unfilled)} no speed, since no decode step had all its rows"
    again = [trial for trial in planned if trial.attempt and trial.status == "done"]
    if again:
        yield f"{_named(index, again)} failed before and been run again"


def _speed(trial: TrialRow, block: BlockRow | None) -> float | None:
    """Return tokens a second, by wall time where the target tells nothing of decode steps."""
    if block is None:
        return None
    return block.aggregate_tok_s if trial.is_told_steps else block.e2e_tok_s


def _is_timed(index: RunIndex, trial: TrialRow) -> bool:
    return index.cell(index.place_of(trial)).kind != "routing"


def _without_any_speed(index: RunIndex, unfilled: Sequence[TrialRow]) -> list[str]:
    """Return a gap where not one trial of the run has a speed; that a few have none is no gap.

    Replies end where the model ends them, so a wave may lose a row before its first decode step.
    Running the trial again would end the same, and its speed stays null.
    """
    timed = [row for row in index.data.blocks if row.aggregate_tok_s or row.e2e_tok_s]
    ids = {trial.trial_id for trial in unfilled}
    if not unfilled or any(row.trial_id not in ids for row in timed):
        return []
    return ["no decode step of the run had all its rows; begin a run with more --max-tokens"]


def _named(index: RunIndex, trials: Sequence[TrialRow]) -> str:
    places = dict.fromkeys(index.place_of(trial) for trial in trials)
    shown = [f"{place.model} {place.workload} {place.cell}" for place in places][:SHOWN_PROBLEMS]
    more = f" and {len(places) - len(shown)} more cells" if len(places) > len(shown) else ""
    count = "1 trial" if len(trials) == 1 else f"{len(trials)} trials"
    return f"{count} of {', '.join(shown)}{more} {'has' if len(trials) == 1 else 'have'}"


def _models_without_result(index: RunIndex) -> Iterator[str]:
    ran = {index.place_of(trial).model for trial in index.data.trials if trial.status == "done"}
    for trial in index.data.trials:
        place = index.place_of(trial)
        if place.model not in ran and trial.status == "skipped":
            ran.add(place.model)
            yield f"model {place.model} did not run: {trial.reason}"
