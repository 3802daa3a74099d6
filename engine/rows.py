"""Slot numbers of live rows: who sits where, who joins where, and when moving somebody pays.

A step covers a declared number of slots from 0, so a hole below that number costs nothing beyond
the padding that is there anyway. Rows are moved only when fewer slots would do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from engine.shapes import row_bucket

Row = TypeVar("Row")


class SlotTable(Generic[Row]):
    """Rows by slot; joining takes the lowest free slot, leaving makes a hole."""

    def __init__(self) -> None:
        self._slots: list[Row | None] = []

    def __len__(self) -> int:
        return sum(row is not None for row in self._slots)

    def __iter__(self) -> Iterator[Row]:
        return (row for row in self._slots if row is not None)

    def __contains__(self, row: object) -> bool:
        return any(held is row for held in self._slots)

    @property
    def num_slots(self) -> int:
        """Slots up to the last live row, holes included."""
        return len(self._slots)

    def items(self) -> Iterator[tuple[int, Row]]:
        """Yield (slot, row) of every live row, in slot order."""
        return ((slot, row) for slot, row in enumerate(self._slots) if row is not None)

    def at(self, slot: int) -> Row | None:
        """Return the row in `slot`, None for a hole and beyond the last row."""
        return self._slots[slot] if slot < len(self._slots) else None

    def index(self, row: Row) -> int:
        """Return the slot of `row`."""
        return next(index for index, held in enumerate(self._slots) if held is row)

    def free_slot(self) -> int:
        """Return the slot the next row will take."""
        return next((i for i, held in enumerate(self._slots) if held is None), len(self._slots))

    def join(self, row: Row) -> int:
        """Add `row` and return its slot."""
        slot = self.free_slot()
        self._slots[slot : slot + 1] = [row]
        return slot

    def leave(self, row: Row) -> None:
        """Free the slot of `row`."""
        self._slots[self.index(row)] = None
        self._drop_tail()

    def compact(self) -> list[tuple[int, int]]:
        """Move rows into holes where that makes the bucket of a step smaller.

        Returns:
            (source, destination) slot copies, to be done in order.
        """
        moves: list[tuple[int, int]] = []
        fewest = row_bucket(max(1, len(self)))
        while len(self._slots) > fewest:
            source, destination = len(self._slots) - 1, self.free_slot()
            self._slots[destination] = self._slots[source]
            self._slots[source] = None
            moves.append((source, destination))
            self._drop_tail()
        return moves

    def _drop_tail(self) -> None:
        while self._slots and self._slots[-1] is None:
            self._slots.pop()
