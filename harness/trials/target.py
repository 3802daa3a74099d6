"""What a run measures: the seam between the run loop and whatever produces tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from engine.errors import FmError
from engine.request import SamplingParams
from harness.cells.cell import Cell
from harness.sampling import Sampling
from harness.store.rows import (
    DivergenceRow,
    LawRow,
    ModelRow,
    RequestRow,
    TrialRecord,
    TrialRow,
)
from harness.workloads.workload import Prompt, Workload

OnTokens = Callable[[int], None]
"""Called between steps with the number of tokens that were emitted."""

Tell = Callable[[str], None]
"""Takes a line for people, as while a server starts."""

SECONDS_PER_TOKEN = 5.0
"""Twenty times what a 135M model needs on a busy core."""

MIN_TIMEOUT_S = 120.0


def timeout_s(tokens: int) -> float:
    """Return the seconds after which a process that is to emit so many tokens is given up."""
    return max(MIN_TIMEOUT_S, SECONDS_PER_TOKEN * tokens)


def ignore_tokens(_count: int) -> None:
    """Show no progress, of a warm-up for example."""


class CannotRunError(FmError):
    """This target has no way to run a cell; the matrix goes on without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialJob:
    """What one turn of a trial has to do.

    Args:
        trial: the planned row, which the record fills in.
        prompts: of this turn, a multiple of the cell's rows.
        max_tokens: most tokens of one reply.
        turn: 0-based, of the trial's `num_turns`; other trials run between two of them.
        wants_replay: no earlier turn has replayed a reply with masks and without.
    """

    trial: TrialRow
    cell: Cell
    workload: Workload
    prompts: tuple[Prompt, ...]
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    turn: int = 0
    num_turns: int = 1
    wants_replay: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledReply:
    """A reply whose draws are judged by the law they are due to.

    Args:
        draws: how many of them, from the first one on.
    """

    row: RequestRow
    cell: Cell
    workload: Workload
    prompt: Prompt
    max_tokens: int
    draws: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """A reply that is not the reference's reply to the same prompt.

    Args:
        trial_id: of the cell under test.
        reference: canonical name of the cell it must equal.
        reply, expected: emitted ids of both.
        reply_ended, expected_ended: True where the row stopped by itself, not at its budget.
    """

    trial_id: str
    reference: str
    cell: Cell
    workload: Workload
    prompt: Prompt
    max_tokens: int
    reply: tuple[int, ...]
    expected: tuple[int, ...]
    reply_ended: bool
    expected_ended: bool
    sampling: SamplingParams = field(default_factory=SamplingParams)


class Target(Protocol):
    """Runs trials on one model at a time."""

    def open(self, model: str) -> ModelRow:
        """Load a model and say what was loaded; a model that is open already stays open.

        Raises:
            DownloadError: it cannot be reached.
            ModelError: it was reached and cannot be used.
        """
        ...

    def check(self, cell: Cell, workload: Workload) -> None:
        """See that the open model can run this cell on this workload.

        Raises:
            CannotRunError: not on this target; the pair is skipped.
            FmError: not at all.
        """
        ...

    def run(self, job: TrialJob, on_tokens: OnTokens) -> TrialRecord:
        """Run a turn of a trial; the first one of a cell on a workload has a warm-up before it."""
        ...

    def judge(self, parting: Parting) -> Sequence[DivergenceRow]:
        """Say where a reply departs from the oracle, and how close the call was there."""
        ...

    def weigh(self, reply: SampledReply) -> LawRow:
        """Say what a reply's draws tell of the law they are due to, as the oracle sees it."""
        ...

    def close(self) -> None:
        """Free everything; safe to call twice."""
        ...
