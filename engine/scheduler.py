"""Which rows are served by the next step, and how far: admission, chunked prefill, draft budgets.

No tensors here: the scheduler sees lengths and budgets, and answers with a StepPlan.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from engine.config import EngineConfig
from engine.plan import Slot, StepKind, StepPlan
from engine.routing import Lane
from engine.rows import RowTable
from engine.sequence import Sequence


class Scheduler:
    """First come, first served; a prompt chunk goes before the next decode step.

    Args:
        reuse: how many prompt tokens a row finds in the prefix cache; asked as late as its first
            chunk is planned, when the rows before it have left theirs.
    """

    def __init__(
        self, config: EngineConfig, reuse: Callable[[Sequence], int] = lambda _: 0
    ) -> None:
        self._config = config
        self._reuse = reuse
        self._waiting: deque[Sequence] = deque()
        self._active: RowTable[Sequence] = RowTable()
        self._prefilling: deque[Sequence] = deque()
        self._moves: list[tuple[int, int]] = []

    @property
    def num_waiting(self) -> int:
        """Rows that have no slot yet."""
        return len(self._waiting)

    @property
    def num_active(self) -> int:
        """Rows that hold a slot."""
        return len(self._active)

    @property
    def has_work(self) -> bool:
        """True while any row waits or is active."""
        return bool(self._waiting) or len(self._active) > 0

    def add(self, sequence: Sequence) -> None:
        """Queue a new row."""
        self._waiting.append(sequence)

    def release(self, sequence: Sequence) -> None:
        """Take a finished or cancelled row out, wherever it is."""
        if sequence in self._prefilling:
            self._prefilling.remove(sequence)
        if sequence in self._active:
            move = self._active.leave(sequence)
            if move is not None:
                self._moves.append(move)
        else:
            self._waiting.remove(sequence)

    def plan(self) -> StepPlan | None:
        """Return the next step, or None when there is nothing to do."""
        self._admit()
        if not len(self._active):
            self._moves.clear()
            return None
        moves, self._moves = tuple(self._moves), []
        while self._prefilling:
            oldest = self._prefilling[0]
            if oldest.is_prefilling:
                return StepPlan(StepKind.PREFILL, (self._chunk(oldest),), moves)
            self._prefilling.popleft()
        slots = tuple(self._burst(index, sequence) for index, sequence in enumerate(self._active))
        return StepPlan(StepKind.DECODE, slots, moves)

    def plan_ahead(self, plan: StepPlan) -> StepPlan | None:
        """Return the step after `plan` when it does not depend on what `plan` will emit.

        That holds when every row just takes its one sampled token further: no drafts to propose,
        nobody to admit, no budget that ends with this step. Its tokens are still on the device.
        """
        if plan.kind is not StepKind.DECODE or self._can_admit() or self._moves:
            return None
        if [slot.sequence for slot in plan.slots] != list(self._active):
            return None
        if any(slot.draft_budget or slot.sequence.remaining <= 1 for slot in plan.slots):
            return None
        slots = tuple(
            Slot(slot.sequence, slot.index, slot.start + 1, tokens=()) for slot in plan.slots
        )
        return StepPlan(StepKind.DECODE, slots)

    def _can_admit(self) -> bool:
        if not self._waiting or len(self._active) >= self._config.max_rows:
            return False
        if not len(self._active):
            return True
        lanes = {self._waiting[0].route.lane, *(row.route.lane for row in self._active)}
        return lanes == {Lane.BATCH}

    def _admit(self) -> None:
        while self._can_admit():
            sequence = self._waiting.popleft()
            self._active.join(sequence)
            self._prefilling.append(sequence)

    def _chunk(self, sequence: Sequence) -> Slot:
        if sequence.num_cached == 0:
            sequence.num_cached = sequence.cached_tokens = self._reuse(sequence)
        end = min(sequence.num_cached + self._config.prefill_chunk, sequence.num_prompt)
        tokens = tuple(sequence.ids[sequence.num_cached : end])
        return Slot(
            sequence,
            self._active.index(sequence),
            sequence.num_cached,
            tokens,
            samples=end == sequence.num_prompt,
        )

    def _burst(self, index: int, sequence: Sequence) -> Slot:
        budget = min(sequence.route.draft_budget, sequence.remaining - 1)
        return Slot(sequence, index, sequence.num_cached, (sequence.ids[-1],), budget)
