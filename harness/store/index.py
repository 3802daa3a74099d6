"""Ways to find rows of one run: by name instead of by hash, by cell instead of by trial."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from harness.store.loaded import FailedReply, ReplyGroup, RunData
from harness.store.rows import (
    CellRow,
    DivergenceRow,
    LawRow,
    ModelRow,
    RequestRow,
    TrialRow,
    WorkloadRow,
)


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a figure or a verdict belongs: names of a model, a workload and a cell."""

    model: str
    workload: str
    cell: str

    def other(self, cell: str) -> Place:
        """Return the same model and workload with another cell."""
        return Place(self.model, self.workload, cell)


@dataclass(slots=True)
class RunIndex:
    """Look-ups over the rows of one run."""

    data: RunData
    models: dict[str, ModelRow] = field(init=False)
    workloads: dict[str, WorkloadRow] = field(init=False)
    cells: dict[str, CellRow] = field(init=False)
    _cell_by_hash: dict[str, CellRow] = field(init=False)
    _workload_by_hash: dict[str, WorkloadRow] = field(init=False)
    _model_by_key: dict[str, ModelRow] = field(init=False)
    _trials: dict[Place, list[TrialRow]] = field(init=False)
    _requests: dict[str, list[RequestRow]] = field(init=False)
    _replies: dict[Place, list[ReplyGroup]] = field(init=False)
    _failed: dict[str, list[FailedReply]] = field(init=False)
    _divergences: dict[tuple[str, str, str], list[DivergenceRow]] = field(init=False)
    _laws: dict[tuple[str, int], LawRow] = field(init=False)

    def __post_init__(self) -> None:
        data = self.data
        self.models = {row.name: row for row in data.models}
        self.workloads = {row.name: row for row in data.workloads}
        self.cells = {row.name: row for row in data.cells}
        self._model_by_key = {row.key: row for row in data.models}
        self._workload_by_hash = {row.content_hash: row for row in data.workloads}
        self._cell_by_hash = {row.content_hash: row for row in data.cells}
        self._trials = defaultdict(list)
        for trial in data.trials:
            self._trials[self.place_of(trial)].append(trial)
        self._requests = defaultdict(list)
        for request in data.requests:
            self._requests[request.trial_id].append(request)
        self._replies = defaultdict(list)
        for group in data.replies:
            self._replies[Place(group.model, group.workload, group.cell)].append(group)
        self._failed = defaultdict(list)
        for reply in data.failed:
            self._failed[reply.trial_id].append(reply)
        self._divergences = defaultdict(list)
        for row in data.divergences:
            self._divergences[row.trial_id, row.prompt_id, row.reference].append(row)

        self._laws = {(row.trial_id, row.position): row for row in data.laws}

    def place_of(self, trial: TrialRow) -> Place:
        """Return the names a trial's hashes stand for."""
        return Place(
            self._model_by_key[trial.model].name,
            self._workload_by_hash[trial.workload].name,
            self._cell_by_hash[trial.cell].name,
        )

    def places(self) -> tuple[Place, ...]:
        """Return every place that was planned, in the order reports print them."""
        return tuple(sorted(self._trials, key=self._print_order))

    def cell(self, place: Place) -> CellRow:
        """Return the cell of a place."""
        return self.cells[place.cell]

    def trials(self, place: Place, status: str = "") -> tuple[TrialRow, ...]:
        """Return the trials of a place by block, all of them or those of one status."""
        found = self._trials.get(place, [])
        return tuple(trial for trial in found if not status or trial.status == status)

    def may_wait(self, place: Place) -> bool:
        """True while replies of a place may not have been judged yet.

        They are judged behind the last trial of their model and workload, and a run that did not
        come to its end may have been cut short right there.
        """
        return self.data.run.status != "finished" or any(
            trial.status == "pending"
            for other, trials in self._trials.items()
            if (other.model, other.workload) == (place.model, place.workload)
            for trial in trials
        )

    def paired(self, one: Place, other: Place) -> frozenset[int]:
        """Return the blocks in which two cells ran in the same attempt.

        A trial that was run again ran apart from one that was not, and the two give no ratio.
        """
        ours, theirs = (
            {(trial.block, trial.attempt) for trial in self.trials(place, "done")}
            for place in (one, other)
        )
        return frozenset(block for block, _ in ours & theirs)

    def apart(self, one: Place, other: Place) -> int:
        """Return in how many blocks two cells ran in different attempts."""
        ours, theirs = (
            {trial.block for trial in self.trials(place, "done")} for place in (one, other)
        )
        return len((ours & theirs) - self.paired(one, other))

    def is_skipped(self, place: Place) -> bool:
        """True when every trial of the place was skipped with a reason."""
        trials = self.trials(place)
        return bool(trials) and all(trial.status == "skipped" for trial in trials)

    def measured(self, trials: Iterable[TrialRow]) -> Iterator[RequestRow]:
        """Yield the measured requests of some trials, warm-up left out."""
        assert self.data.has_requests, "single requests were not loaded; see EvalStore.load_report"
        for trial in trials:
            for request in self._requests.get(trial.trial_id, []):
                if request.phase == "measured":
                    yield request

    def replies(self, place: Place) -> tuple[ReplyGroup, ...]:
        """Return the measured replies of a place, counted by what a report tells of them."""
        return tuple(self._replies.get(place, ()))

    def failed(self, trial: TrialRow) -> tuple[FailedReply, ...]:
        """Return the replies of a trial with something wrong, by position."""
        return tuple(self._failed.get(trial.trial_id, ()))

    def judged(self, trial_id: str, prompt_id: str, reference: str) -> tuple[DivergenceRow, ...]:
        """Return what the oracle said of a reply that parts from the reference cell's."""
        return tuple(self._divergences.get((trial_id, prompt_id, reference), []))

    def law(self, request: RequestRow) -> LawRow | None:
        """Return what the oracle said of a sampled reply's draws, None where it was not asked."""
        return self._laws.get((request.trial_id, request.position))

    def _print_order(self, place: Place) -> tuple[str, str, bool, int, tuple[int, ...], str]:
        cell = self.cells[place.cell]
        ranks = tuple(_FEATURE_RANK.get(word, 9) for word in cell.features)
        return (
            place.model,
            place.workload,
            cell.kind == "peer",
            cell.max_rows if cell.lane == "batch" else 0,
            ranks,
            cell.name,
        )


_FEATURE_RANK = {"grammar": 0, "spec": 1, "fill": 2}
"""Order of cells in a table: bare, grammar, spec, spec with grammar."""
