"""What one step computes, as data: after planning nobody reads settings any more."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from engine.config import STEP_WIDTHS
from engine.sequence import Sequence


class StepKind(StrEnum):
    """A step takes prompt tokens of one row, or one verified burst of every live row."""

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


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One forward over slots `first .. first + len(slots)`, in slot order.

    Args:
        moves: (source, destination) slot copies to do before the step, in order.
    """

    kind: StepKind
    slots: tuple[Slot, ...]
    moves: tuple[tuple[int, int], ...] = ()

    @property
    def first(self) -> int:
        """Index of the first cache slot of the step."""
        return self.slots[0].index

    @property
    def starts(self) -> tuple[int, ...]:
        """Cache length of each row before the step."""
        return tuple(slot.start for slot in self.slots)


def step_width(num_tokens: int) -> int:
    """Return the declared width that holds `num_tokens` positions of a decode step."""
    return next(width for width in STEP_WIDTHS if width >= num_tokens)
