"""What one step computes, as data: after planning nobody reads settings any more."""

from __future__ import annotations

from collections.abc import Sequence as Many
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
class RowRange:
    """Where the rows of one forward lie in the cache, and what is each row's own.

    Args:
        first: slot of the first row.
        starts: cache length of each row; its tokens are written behind it, [rows].
        counts: tokens of each row; what follows them is padding, 0 for an idle row, [rows].
        adapters: index of each row's LoRA adapter, 0 is none, [rows].
    """

    first: int
    starts: tuple[int, ...]
    counts: tuple[int, ...]
    adapters: tuple[int, ...]


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

    def rows(self, drafts: Many[tuple[int, ...]]) -> RowRange:
        """Return the range with each slot's tokens and drafts; idle rows have none."""
        counts, adapters = [0] * self.num_rows, [0] * self.num_rows
        for slot, draft in zip(self.slots, drafts, strict=True):
            counts[self.row(slot)] = slot.num_known + len(draft)
            adapters[self.row(slot)] = slot.sequence.adapter
        return RowRange(self.first, self.starts, tuple(counts), tuple(adapters))
