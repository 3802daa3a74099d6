"""Dense row numbers: live rows always occupy slots 0 .. n - 1.

A row joins at the end and leaves by letting the last row take its place, so that a step over all
rows reads one contiguous range of the cache and an idle slot never costs compute.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

Row = TypeVar("Row")


class RowTable(Generic[Row]):
    """An ordered set of rows whose position is their slot."""

    def __init__(self) -> None:
        self._rows: list[Row] = []

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def __contains__(self, row: object) -> bool:
        return any(held is row for held in self._rows)

    def index(self, row: Row) -> int:
        """Return the slot of `row`."""
        return next(index for index, held in enumerate(self._rows) if held is row)

    def join(self, row: Row) -> int:
        """Add `row` and return its slot."""
        self._rows.append(row)
        return len(self._rows) - 1

    def leave(self, row: Row) -> tuple[int, int] | None:
        """Remove `row`; return the (source, destination) slot copy that closes the gap, if any."""
        index = self.index(row)
        last = self._rows.pop()
        if index == len(self._rows):
            return None
        self._rows[index] = last
        return len(self._rows), index
