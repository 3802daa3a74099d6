"""What one step computes, as data: after planning nobody reads settings any more."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from engine.sequence import Sequence


class StepKind(StrEnum):
    """A step takes prompt tokens of some rows, or one verified burst of every row past that."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Slot:
    """The part of one row in a step.

    Args:
        sequence: the row.
        index: which slot of the KV cache holds it.
        start: tokens of the row already in that slot; the step writes behind them.
        tokens: host-known ids fed at `start`; empty when the token is still on the device.
        draft_budget: most tokens a drafter may add behind them.
        samples: whether the step chooses a token for the row (false inside a long prompt).
    """

    sequence: Sequence
    index: int
    start: int
    tokens: tuple[int, ...]
    draft_budget: int = 0
    samples: bool = True

    @property
    def num_known(self) -> int:
        """Tokens fed before any draft."""
        return max(1, len(self.tokens))


@dataclass(frozen=True, slots=True)
class Admission:
    """How the slots change before a step is planned.

    Args:
        moves: (source, destination) slot copies, to be done in order.
        joined: rows that took a slot, after the moves.
    """

    moves: tuple[tuple[int, int], ...]
    joined: tuple[Sequence, ...]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One forward over slots `first .. first + num_rows`.

    Args:
        slots: the rows it serves, in slot order; the other slots of the range are idle.
        starts: where each slot of the range is written, [num_rows].
    """

    kind: StepKind
    slots: tuple[Slot, ...]
    first: int
    starts: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        """Slots of the range, idle ones included."""
        return len(self.starts)

    def row(self, slot: Slot) -> int:
        """Return which row of the step's arrays belongs to `slot`."""
        return slot.index - self.first
