"""A shadow of an engine's integer state, rebuilt from what it says and from what it computes.

Sources are token events, admissions, step plans, and what goes in and out of the slot cache: which
ids each forward writes where, which slots are copied. From these alone follow every row's slot and
lengths, and the ids that each slot of the cache holds; the engine's own fields are compared with
them after every step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from engine.loop import Engine
from engine.plan import Admission, RowRange, StepPlan
from engine.request import Request, TokenEvent
from engine.shapes import CAPACITY_BLOCK, ROW_BUCKETS


def tap(
    owner: object,
    name: str,
    *,
    before: Callable[..., None] | None = None,
    after: Callable[..., None] | None = None,
) -> None:
    """Let callbacks see every call of a method of one object.

    Args:
        before: gets the arguments.
        after: gets the result, then the arguments.
    """
    method = getattr(owner, name)

    def tapped(*args: Any) -> Any:
        if before is not None:
            before(*args)
        result = method(*args)
        if after is not None:
            after(result, *args)
        return result

    setattr(owner, name, tapped)


@dataclass(slots=True)
class ShadowRow:
    """A submitted row.

    Attributes:
        slot: None while it waits.
        fed: prompt tokens in its slot.
        in_flight: decode forwards launched and not landed.
    """

    request: Request
    slot: int | None = None
    fed: int = 0
    emitted: list[int] = field(default_factory=list)
    in_flight: int = 0

    @property
    def ids(self) -> list[int]:
        """Prompt and emitted tokens."""
        return [*self.request.prompt_ids, *self.emitted]

    @property
    def held(self) -> int:
        """Tokens in its slot: while it decodes, all but the newest."""
        return self.fed + max(0, len(self.emitted) - 1)

    def land(self) -> None:
        """Take one decode forward as landed; prompt chunks are not counted as in flight."""
        self.in_flight = max(0, self.in_flight - 1)


class Shadow:
    """Watches one engine; `problems` says where the two disagree.

    Attributes:
        moves, twins: slots copied to close a hole, and for a copy of a prompt.
        num_sampled: steps that chose tokens, each of which has to wait for the device once.
    """

    def __init__(self, engine: Engine) -> None:
        self.problems: list[str] = []
        self.moves = self.twins = self.num_sampled = 0
        self._engine = engine
        self._rows: dict[str, ShadowRow] = {}
        self._waiting: deque[str] = deque()
        self._slots: dict[int, str] = {}
        self._cells: dict[int, list[int]] = {}
        self._writes: list[Callable[[], None]] = []
        self._moving: list[tuple[int, int]] = []
        self._flights: deque[list[str]] = deque()
        cache = engine._runner.cache
        tap(engine._scheduler, "admit", after=self._admitted)
        tap(engine._scheduler, "plan", after=self._planned)
        tap(engine._scheduler, "plan_ahead", after=self._planned)
        tap(engine._runner, "prefill", before=self._fed)
        tap(engine._runner, "forward", before=self._fed)
        tap(engine._selector, "select", after=self._selected)
        tap(cache, "move", before=self._moved)
        tap(cache, "write", before=self._written)
        tap(cache, "resize", before=self._resized)

    # -- what the caller does ------------------------------------------------------------------

    def queue(self, requests: Iterable[Request]) -> None:
        """Note submitted rows, in order."""
        for request in requests:
            self._rows[request.request_id] = ShadowRow(request)
            self._waiting.append(request.request_id)

    def is_live(self, request_id: str) -> bool:
        """Return whether a row was submitted and has not ended."""
        return request_id in self._rows

    def leave(self, request_id: str) -> None:
        """Note a row that has ended."""
        row = self._rows.pop(request_id)
        if row.slot is None:
            self._waiting.remove(request_id)
        else:
            del self._slots[row.slot]
        while self._flights and not any(name in self._rows for name in self._flights[0]):
            self._flights.popleft()

    def land(self, events: Iterable[TokenEvent]) -> None:
        """Note what a step emitted."""
        for name in self._flights.popleft() if self._flights else ():
            if name in self._rows:
                self._rows[name].land()
        for event in events:
            row = self._rows.get(event.request_id)
            if row is None:
                self._say(f"{event.request_id} has ended and emits {event.token_id}")
                continue
            self._expect(event.position == len(row.emitted), f"{event} after {row.emitted}")
            if event.token_id is not None:
                row.emitted.append(event.token_id)
            if event.finish_reason is not None:
                self.leave(event.request_id)

    # -- what the engine does ------------------------------------------------------------------

    def _admitted(self, admission: Admission) -> None:
        for source, destination in admission.moves:
            self._expect(destination not in self._slots, f"slot {destination} is taken")
            self._seat(self._slots.pop(source), destination)
            self._moving.append((source, destination))
            self.moves += 1
        for sequence in admission.joined:
            name = self._waiting.popleft()
            joined = sequence.request.request_id
            self._expect(joined == name, f"{joined} is admitted before {name}")
            self._seat(name, next(slot for slot in range(129) if slot not in self._slots))
        most = self._engine.config.max_rows
        self._expect(len(self._slots) <= most, f"{len(self._slots)} rows, {most} allowed")

    def _seat(self, name: str, slot: int) -> None:
        self._slots[slot] = name
        self._rows[name].slot = slot

    def _planned(self, plan: StepPlan | None, *_: object) -> None:
        for slot in plan.slots if plan is not None else ():
            name = slot.sequence.request.request_id
            self._expect(self._slots.get(slot.index) == name, f"{name} in slot {slot.index}")

    def _fed(self, ids: Any, rows: RowRange) -> None:
        served: list[str] = []
        for index, (start, count) in enumerate(zip(rows.starts, rows.counts, strict=True)):
            slot = rows.first + index
            name = self._slots.get(slot)
            self._writes.append(partial(self._put, slot, start, ids, index, count))
            if name is None:
                self._expect(count == 0, f"{count} tokens are fed to the free slot {slot}")
            elif count:
                self._advance(self._rows[name], start, count)
                served.append(name)
        self._flights.append(served)

    def _advance(self, row: ShadowRow, start: int, count: int) -> None:
        held = row.held + row.in_flight
        name = row.request.request_id
        self._expect(start == held, f"{name} is fed at {start} and holds {held}")
        prompt = len(row.request.prompt_ids)
        if row.fed < prompt:
            row.fed += count
            self._expect(row.fed <= prompt, f"{name} is fed {row.fed} of {prompt}")
        else:
            row.in_flight += 1

    def _put(self, slot: int, start: int, ids: Any, index: int, count: int) -> None:
        """Write ids, and forget what lies behind: padding has overwritten it."""
        cells = self._cells.setdefault(slot, [])
        cells[start:] = np.array(ids).reshape(-1, ids.shape[-1])[index, :count].tolist()

    def _selected(self, tokens: object, *_: object) -> None:
        self.num_sampled += tokens is not None

    def _moved(self, source: int, destination: int) -> None:
        self._writes.append(
            lambda: self._cells.update({destination: list(self._cells.get(source, []))})
        )
        if (source, destination) in self._moving:
            self._moving.remove((source, destination))
            return
        self.twins += 1
        row, twin = self._rows[self._slots[destination]], self._rows[self._slots[source]]
        same = row.request.prompt_ids == twin.request.prompt_ids
        self._expect(same and row.fed == 0, f"slot {source} is copied over slot {destination}")
        row.fed = len(row.request.prompt_ids) - 1

    def _written(self, slot: int, start: int, arrays: Any) -> None:
        row = self._rows[self._slots[slot]]
        self._expect(start == row.fed, f"a prefix is put at {start}, the row holds {row.fed}")
        row.fed = start + arrays[0][0].shape[-2]
        ids = list(row.request.prompt_ids[: row.fed])
        self._writes.append(lambda: self._cells.update({slot: ids}))

    def _resized(self, num_slots: int, capacity: int) -> None:
        def cut() -> None:
            self._cells = {s: c[:capacity] for s, c in self._cells.items() if s < num_slots}

        self._writes.append(cut)

    # -- the comparison ------------------------------------------------------------------------

    def check(self) -> None:
        """Compare the engine between two steps with the shadow."""
        for write in self._writes:
            write()
        self._writes.clear()
        self._check_rows()
        self._check_totals()

    def _check_rows(self) -> None:
        scheduler = self._engine._scheduler
        seated = {slot: row.request.request_id for slot, row in scheduler._table.items()}
        self._expect(seated == self._slots, f"rows sit at {seated}, should at {self._slots}")
        waiting = [row.request.request_id for row in scheduler._waiting]
        self._expect(waiting == list(self._waiting), f"{waiting} wait, should {self._waiting}")
        for slot, sequence in scheduler._table.items():
            row = self._rows.get(sequence.request.request_id)
            if row is None:
                continue  # said above
            name, ids = row.request.request_id, row.ids
            self._expect(sequence.ids == ids, f"{name} has other ids than it told")
            self._expect(
                sequence.num_emitted == len(row.emitted), f"{name} counts {sequence.num_emitted}"
            )
            self._expect(
                sequence.num_cached == row.held,
                f"{name} holds {sequence.num_cached}, not {row.held}",
            )
            cells = self._cells.get(slot, [])
            self._expect(cells[: row.held] == ids[: row.held], f"slot {slot} is not {name}'s text")

    def _check_totals(self) -> None:
        stats, cache = self._engine.stats(), self._engine._runner.cache
        self._expect(stats.active == len(self._slots), f"{stats.active} rows are active")
        self._expect(stats.pending == len(self._waiting), f"{stats.pending} rows are pending")
        self._expect(cache.capacity % CAPACITY_BLOCK == 0, f"the capacity is {cache.capacity}")
        self._expect(cache.num_slots in (0, *ROW_BUCKETS), f"the cache has {cache.num_slots} slots")
        if stats.budget_bytes is not None:
            most = max(stats.projected_bytes, stats.kv_bytes)
            self._expect(most <= stats.budget_bytes, f"{most} bytes of {stats.budget_bytes}")

    def _expect(self, holds: bool, problem: str) -> None:
        if not holds:
            self._say(problem)

    def _say(self, problem: str) -> None:
        self.problems.append(f"shadow: {problem}"[:300])
