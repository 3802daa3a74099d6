"""Which rows are served by the next step, and how far: admission, chunked prefill, draft budgets.

Rows are admitted first come, first served. Prompt chunks and decode steps take turns while both
have work, so neither can starve: a row that decodes waits at most one chunk of
`interleaved_prefill` columns and one step for its next token, and the oldest prompt gets a chunk
after every step. No tensors here: the scheduler sees lengths and budgets, and answers with a
StepPlan.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from engine.config import EngineConfig
from engine.kv_budget import KvBudget, Rectangle
from engine.plan import Admission, Slot, StepKind, StepPlan
from engine.routing import Lane
from engine.rows import SlotTable
from engine.sequence import Sequence
from engine.shapes import (
    CAPACITY_BLOCK,
    STEP_WIDTHS,
    prefill_block,
    prefill_width,
    round_up,
    row_bucket,
    whole_bucket,
    whole_width,
)


class DraftBudgets(Protocol):
    """Decides how many drafts a row may have (engine.draft.budget.DraftBudgets)."""

    def budget(self, sequence: Sequence, rows: int, pending: int = 0) -> int:
        """Return the most drafts of the row in its next step, `pending` launched ones left out."""
        ...


@dataclass(frozen=True, slots=True)
class ChunkBounds:
    """How much prompt one step may take.

    Args:
        per_row: tokens of one prompt.
        columns: what prompts side by side may cost together, padding included.
        end: cache positions before which every row of them has to end.
    """

    per_row: int
    columns: int
    end: int


class Scheduler:
    """Decides; holds which row sits in which slot.

    Args:
        kv_budget: what admitted rows may come to need.
        draft_budgets: decides about drafts; None gives every row all that its route allows.
        begin: called with a row and its slot before its first chunk; may put the beginning of the
            prompt there and count it as cached.
    """

    def __init__(
        self,
        config: EngineConfig,
        kv_budget: KvBudget,
        draft_budgets: DraftBudgets | None = None,
        begin: Callable[[Sequence, int], None] | None = None,
    ) -> None:
        self._config = config
        self._kv_budget = kv_budget
        self._draft_budgets = draft_budgets
        self._begin = begin
        self._waiting: deque[Sequence] = deque()
        self._table: SlotTable[Sequence] = SlotTable()
        self._prefilling: list[Sequence] = []
        self._was_prefill = False
        # a chunk of other lengths is padded, beyond the columns that bound the gap of live rows
        self._whole_between = whole_width(config.interleaved_prefill)

    @property
    def num_waiting(self) -> int:
        """Rows that have no slot yet."""
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        """True while any row waits or is active."""
        return bool(self._waiting) or len(self._table) > 0

    @property
    def active(self) -> list[Sequence]:
        """Rows that hold a slot, in slot order."""
        return list(self._table)

    @property
    def projected_bytes(self) -> int:
        """Bytes of keys and values that the admitted rows may come to need."""
        return self._kv_budget.bytes_of(self.most)

    @property
    def most(self) -> Rectangle:
        """The largest cache that the admitted rows may come to need."""
        if not len(self._table):
            return Rectangle()
        return Rectangle.around(self._table.num_slots, max(map(self.row_tokens, self._table)))

    def room(self, held: Rectangle) -> Rectangle:
        """Return the cache to hold for the next steps, of which `held` is there already."""
        if not len(self._table):
            return held
        return self._kv_budget.room(held, self.most, self._needed)

    def row_tokens(self, sequence: Sequence) -> int:
        """Return the most positions a row may write, padding behind its tokens included."""
        request = sequence.request
        # tokens fed again after a rejection widen the step of all rows, up to the widest there is
        window = STEP_WIDTHS[-1] if self._config.num_draft_tokens else 1
        padding = prefill_block(min(self._config.prefill_chunk, sequence.num_prompt))
        return sequence.num_prompt + max(request.max_tokens + window, padding)

    @property
    def _needed(self) -> int:
        """Positions that the next steps may write to in any one slot; `room` holds as many."""
        margin = max(2 * STEP_WIDTHS[-1], prefill_block(self._config.prefill_chunk))
        return max(
            min(max(row.num_fill, row.num_cached) + margin, self.row_tokens(row))
            for row in self._table
        )

    def add(self, sequence: Sequence) -> None:
        """Queue a new row.

        Raises:
            RequestError: it would not fit the KV budget alone.
        """
        self._kv_budget.check_alone(self.row_tokens(sequence))
        self._waiting.append(sequence)

    def release(self, sequence: Sequence) -> None:
        """Take a finished or cancelled row out, wherever it is."""
        if sequence in self._prefilling:
            self._prefilling.remove(sequence)
        if sequence in self._table:
            self._table.leave(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)

    def restart(self, rows: list[Sequence]) -> None:
        """Let all rows wait again, in this order, and nobody hold a slot."""
        self._waiting = deque(rows)
        self._table = SlotTable()
        self._prefilling = []
        self._was_prefill = False

    def admit(self) -> Admission:
        """Let waiting rows in and close gaps that cost a step; to be called before every plan."""
        moves = self._table.compact()
        joined: list[Sequence] = []
        while self._can_admit():
            sequence = self._waiting.popleft()
            self._table.join(sequence)
            self._prefilling.append(sequence)
            joined.append(sequence)
        return Admission(tuple(moves), tuple(joined))

    def share_prompts(self) -> list[tuple[int, int]]:
        """Give rows the prompt that a sibling holds by now; returns the slot copies to do.

        The last prompt token is left to be fed, for its scores.
        """
        copies: list[tuple[int, int]] = []
        for row in self._prefilling:
            held = row.num_prompt - 1
            if row.is_begun or not held:
                continue
            donor = self._first_sibling(row, lambda other: other.num_cached >= other.num_prompt - 1)
            if donor is not None:
                copies.append((self._table.index(donor), self._table.index(row)))
                row.num_cached = row.cached_tokens = held
                row.is_begun = True
        return copies

    def _first_sibling(
        self, row: Sequence, is_wanted: Callable[[Sequence], bool]
    ) -> Sequence | None:
        """Return the oldest sibling of a row, itself included, that is wanted and holds a slot."""
        wanted = (other for other in row.siblings if is_wanted(other) and other in self._table)
        return next(wanted, None)

    def _waits(self, row: Sequence) -> bool:
        """Return whether an older sibling of a row computes their prompt first."""
        if row.is_begun:
            return False
        oldest = self._first_sibling(row, lambda other: other.is_prefilling)
        return oldest is not None and oldest is not row

    def plan(self) -> StepPlan | None:
        """Return the next step, or None when there is nothing to do."""
        if not len(self._table):
            return None
        self._prefilling = [row for row in self._prefilling if row.is_prefilling]
        self._was_prefill = self._is_prefill_turn()
        return self._prefill() if self._was_prefill else self._decode()

    def plan_ahead(self, plan: StepPlan) -> StepPlan | None:
        """Return the step after `plan` when it does not depend on what `plan` will emit.

        That holds when every row just takes its one sampled token further: no drafts to propose,
        nobody to admit or to prefill, nothing fed again, no budget that ends with this step. Its
        tokens are still on the device, in the only column of each row.
        """
        if plan.kind is not StepKind.DECODE or self._prefilling or self._can_admit():
            return None
        if [slot.sequence for slot in plan.slots] != list(self._table):
            return None
        if any(slot.num_known > 1 or slot.draft_budget for slot in plan.slots):
            return None
        if any(slot.sequence.remaining <= 1 for slot in plan.slots):
            return None
        if any(self._drafts(slot.sequence, pending=1) for slot in plan.slots):
            return None
        slots = tuple(
            Slot(slot.sequence, slot.index, slot.start + slot.num_known, tokens=())
            for slot in plan.slots
        )
        return self._over(slots, 0, plan.num_rows, StepKind.DECODE)

    # -- admission -----------------------------------------------------------------------------

    def _can_admit(self) -> bool:
        if not self._waiting or len(self._table) >= self._config.max_rows:
            return False
        candidate = self._waiting[0]
        if not self._kv_budget.fits(self._with(candidate)):
            return False
        lanes = {candidate.route.lane, *(row.route.lane for row in self._table)}
        return not len(self._table) or lanes == {Lane.BATCH}

    def _with(self, candidate: Sequence) -> Rectangle:
        slots_in_use = max(self._table.num_slots, self._table.free_slot() + 1)
        longest = max(map(self.row_tokens, (candidate, *self._table)))
        return Rectangle.around(slots_in_use, longest)

    # -- steps ---------------------------------------------------------------------------------

    def _is_prefill_turn(self) -> bool:
        if not self._prefilling:
            return False
        return not (self._was_prefill and self._has_decoding)

    @property
    def _has_decoding(self) -> bool:
        return len(self._prefilling) < len(self._table)

    def _prefill(self) -> StepPlan:
        """Plan a chunk of the oldest prompt, and of neighbours that fit beside it."""
        bounds = self._bounds()
        oldest = next(row for row in self._prefilling if not self._waits(row))
        first = self._table.index(oldest)
        self._start(oldest, first)
        rows = [oldest]
        while not oldest.is_suspect and (neighbour := self._prompt_at(first + len(rows))):
            wider = [*rows, neighbour]
            if not self._fills(wider, bounds):
                break
            self._start(neighbour, first + len(rows))
            if not self._fills(wider, bounds):
                break
            rows = wider
        rows = rows[: whole_bucket(len(rows))]
        slots = tuple(self._chunk(row, first + i, bounds.per_row) for i, row in enumerate(rows))
        return self._over(slots, first, len(rows), StepKind.PREFILL)

    def _bounds(self) -> ChunkBounds:
        """Return what a chunk may take now.

        Nobody waits for it while no row decodes, so that it may be as large as either bound.
        """
        per_row, between = self._config.prefill_chunk, self._config.interleaved_prefill
        end = round_up(self._needed, CAPACITY_BLOCK)
        if self._has_decoding:
            return ChunkBounds(min(per_row, self._whole_between), between, end)
        return ChunkBounds(per_row, max(per_row, between), end)

    def _start(self, row: Sequence, slot: int) -> None:
        if self._begin is not None and not row.is_begun and row.num_cached == 0:
            self._begin(row, slot)
        row.is_begun = True

    def _prompt_at(self, slot: int) -> Sequence | None:
        row = self._table.at(slot)
        if row is None or row not in self._prefilling or row.is_suspect or self._waits(row):
            return None
        return row

    def _fills(self, rows: list[Sequence], bounds: ChunkBounds) -> bool:
        """Return whether prompts side by side stay in bounds and are half of what they cost."""
        chunks = [min(row.num_fill - row.num_cached, bounds.per_row) for row in rows]
        width = prefill_width(max(chunks))
        end, columns = max(row.num_cached for row in rows) + width, len(rows) * width
        fits = end <= bounds.end and columns <= bounds.columns
        return fits and 2 * sum(chunks) >= columns

    def _chunk(self, sequence: Sequence, index: int, most: int) -> Slot:
        start = sequence.num_cached
        length = min(sequence.num_fill - start, most)
        if start + prefill_width(length) > self.row_tokens(sequence):
            length = whole_width(length)  # a restarted row may have no room for padding
        end = start + length
        tokens = tuple(sequence.ids[start:end])
        return Slot(sequence, index, start, tokens, samples=end == sequence.num_fill)

    def _decode(self) -> StepPlan:
        prefilling = set(map(id, self._prefilling))
        slots = tuple(
            self._burst(index, row)
            for index, row in self._table.items()
            if id(row) not in prefilling
        )
        return self._over(slots, 0, row_bucket(slots[-1].index + 1), StepKind.DECODE)

    def _burst(self, index: int, sequence: Sequence) -> Slot:
        tokens = tuple(sequence.ids[sequence.num_cached :])
        budget = min(self._drafts(sequence), STEP_WIDTHS[-1] - len(tokens))
        return Slot(sequence, index, sequence.num_cached, tokens, budget)

    def _drafts(self, sequence: Sequence, pending: int = 0) -> int:
        """Return the drafts of a row in the step behind its `pending` launched ones."""
        if self._draft_budgets is not None:
            return self._draft_budgets.budget(sequence, len(self._table), pending)
        return max(0, min(sequence.route.draft_budget, sequence.remaining - 1 - pending))

    def _over(self, slots: tuple[Slot, ...], first: int, num_rows: int, kind: StepKind) -> StepPlan:
        """Return a plan over a range of slots.

        Idle slots are written too. A hole goes along with the first row, so that rows of equal
        length stay so; a row whose prompt is not done is written behind what it holds.
        """
        starts = [slots[0].start] * num_rows
        for index, row in self._table.items():
            if first <= index < first + num_rows:
                starts[index - first] = row.num_cached
        for slot in slots:
            starts[slot.index - first] = slot.start
        return StepPlan(kind, slots, first, tuple(starts))
