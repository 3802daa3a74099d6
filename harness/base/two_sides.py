"""The target of `fm gate --base`: cells of both sides, each run by the code of its side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from engine.errors import FmError
from harness.cells.cell import Cell
from harness.cells.name import BASE
from harness.store.rows import DivergenceRow, LawRow, ModelRow, TrialRecord
from harness.trials.target import CannotRunError, OnTokens, Parting, SampledReply, Target, TrialJob
from harness.workloads.workload import Workload


class SideTarget(Target, Protocol):
    """A target whose code may be older or newer than this."""

    @property
    def takes_turns(self) -> bool:
        """False where it begins every turn as it begins a trial."""
        ...


@dataclass(slots=True)
class TwoSides:
    """Target made of two.

    Args:
        head: runs the cells without a side, peers included.
        base: runs their twins.
    """

    head: SideTarget
    base: SideTarget
    _unlike: str = field(default="", init=False)

    def open(self, model: str) -> ModelRow:
        """Open the model on both sides; what the base makes of it decides on its cells alone."""
        row = self.head.open(model)
        try:
            self._unlike = _unlike(row, self.base.open(model))
        except FmError as error:
            self._unlike = f"the base cannot open {model}: {error}"
        return row

    def check(self, cell: Cell, workload: Workload) -> None:
        """See that the cell's side can run it; what the base cannot run is left out."""
        if cell.key.side != BASE:
            self.head.check(cell, workload)
            return
        if self._unlike:
            raise CannotRunError(self._unlike)
        try:
            self.base.check(cell, workload)
        except FmError as error:
            raise CannotRunError(f"the base cannot run it: {error}") from error

    def run(self, job: TrialJob, on_tokens: OnTokens) -> TrialRecord:
        """Run a turn of a trial on its side, and begin it as both sides can."""
        if not (self.head.takes_turns and self.base.takes_turns):
            job = replace(job, turn=0, wants_replay=True)
        return self._side(job.cell).run(job, on_tokens)

    def judge(self, parting: Parting) -> Sequence[DivergenceRow]:
        """Ask the oracle of the reply's side."""
        return self._side(parting.cell).judge(parting)

    def weigh(self, reply: SampledReply) -> LawRow:
        """Ask the oracle of the reply's side."""
        return self._side(reply.cell).weigh(reply)

    def close(self) -> None:
        """Free both, the second one also where the first one fails."""
        try:
            self.head.close()
        finally:
            self.base.close()

    def _side(self, cell: Cell) -> SideTarget:
        return self.base if cell.key.side == BASE else self.head


def _unlike(head: ModelRow, base: ModelRow) -> str:
    """Return how the base's model is another one, "" when both are the same."""
    ours, theirs = (_facts(row) for row in (head, base))
    apart = [
        f"{name} {theirs[name]}, not {ours[name]}" for name in ours if ours[name] != theirs[name]
    ]
    return f"the base opens another {head.name}: {', '.join(apart)}" if apart else ""


def _facts(row: ModelRow) -> Mapping[str, object]:
    return {
        "digest": row.digest[:12],
        "dtype": row.dtype,
        "vocabulary": row.vocab_size,
        "layers": row.num_layers,
    }
