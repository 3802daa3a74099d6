"""How long a plan will take: by what the same cells took on this machine, else by a stated rate."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.machine import machine_id, read_machine
from harness.planning.matrix import Matrix, Pair
from harness.store import EvalStore, StoreError
from harness.store.history import Names, PastCell

STATED_STEPS_PER_S = 15.0
"""Decode steps a second where nothing is known: a model of 135M parameters on two cores."""

MAX_RUNS = 50
"""Past runs that are looked through, newest first."""

Source = Literal["past run", "this model", "stated rate"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """The time one pair needs, and how that is known.

    Args:
        source: the same cell and workload in a past run, other cells of the model in past runs, or
            STATED_STEPS_PER_S and every reply as long as it may be.
        run_id: the past run, "" for a stated rate.
    """

    seconds: float
    source: Source
    run_id: str = ""


@dataclass(frozen=True, slots=True)
class PairForecast:
    """One pair with its share of the plan; a skipped one has none and no estimate."""

    pair: Pair
    trials: int
    requests: int
    estimate: Estimate | None


@dataclass(frozen=True, slots=True)
class Forecast:
    """A plan with the time it will need, loading models not counted.

    Args:
        note: why past runs were not looked at, "" where they were or there are none.
    """

    matrix: Matrix
    pairs: tuple[PairForecast, ...]
    note: str = ""

    @property
    def seconds(self) -> float:
        """All pairs together."""
        return math.fsum(item.estimate.seconds for item in self.pairs if item.estimate)

    @property
    def sources(self) -> Counter[Source]:
        """How many pairs are estimated by what."""
        return Counter(item.estimate.source for item in self.pairs if item.estimate)


@dataclass(frozen=True, slots=True)
class Past:
    """Cells of past runs on this machine, newest first, each with its run."""

    cells: Sequence[tuple[str, PastCell]] = ()
    note: str = ""

    def estimate(self, pair: Pair, requests: int) -> Estimate:
        """Return the time that requests of a pair need."""
        own = [item for item in self._of_model(pair) if item[1].cell == pair.cell.name]
        same = next((item for item in own if item[1].workload == pair.workload.name), None)
        if same is not None and same[1].tokens:
            run_id, cell = same
            tokens = requests * mean_length([cell], pair.max_tokens)
            return Estimate(tokens * cell.seconds / cell.tokens, "past run", run_id)
        steps = requests * self._length(pair) / pair.cell.rows
        newest = next(iter(self._of_model(pair)), None)
        if newest is None:
            return Estimate(steps / STATED_STEPS_PER_S, "stated rate")
        run_id = newest[0]
        cells = [cell for found, cell in self._of_model(pair) if found == run_id]
        taken = sum(cell.tokens / cell.max_rows for cell in cells)
        return Estimate(steps * sum(cell.seconds for cell in cells) / taken, "this model", run_id)

    def _of_model(self, pair: Pair) -> Iterable[tuple[str, PastCell]]:
        return (item for item in self.cells if item[1].model == pair.model and item[1].tokens)

    def _length(self, pair: Pair) -> float:
        """Return how long replies to a workload are, whichever cell wrote them."""
        alike = [cell for _, cell in self._of_model(pair) if cell.workload == pair.workload.name]
        return mean_length(alike, pair.max_tokens) if alike else pair.max_tokens


def mean_length(cells: Iterable[PastCell], max_tokens: int) -> float:
    """Return the mean length that replies would have had under another budget.

    A reply that its budget cut is taken to use up the other one as well.
    """
    lengths = [length for cell in cells for length in cell.lengths]
    tokens = sum(
        length.count * (max_tokens if length.is_cut else min(length.tokens, max_tokens))
        for length in lengths
    )
    count = sum(length.count for length in lengths)
    return tokens / count if count else max_tokens


def read_past(database: Path, target: str) -> Past:
    """Return what past runs on this machine and target took; nothing where there is no database."""
    if not database.is_file():
        return Past()
    try:
        with EvalStore.open_existing(database, lock_wait_s=1.0) as store:
            here = machine_id({**read_machine().as_dict(), "target": target})
            runs = [
                run.run_id
                for run in store.list_runs(MAX_RUNS)
                if run.target == target and machine_id(run.environment) == here
            ]
            found: dict[Names, tuple[str, PastCell]] = {}
            for run in runs:
                found |= {cell.names: (run, cell) for cell in store.past_cells(run, found)}
            return Past(tuple(found.values()))
    except StoreError as error:
        return Past(note=f"past runs are not known: {error}")


def forecast(matrix: Matrix, past: Past) -> Forecast:
    """Return the plan with the time that each of its pairs needs."""
    trials, requests = Counter[int](), Counter[int]()
    for trial in matrix.trials():
        trials[id(trial.pair)] += 1
        requests[id(trial.pair)] += len(trial.prompts)
    pairs = tuple(
        PairForecast(
            pair,
            trials[id(pair)],
            requests[id(pair)],
            None if pair.skip_reason else past.estimate(pair, requests[id(pair)]),
        )
        for pair in matrix.pairs
    )
    return Forecast(matrix, pairs, past.note)
