"""Sampling parameters of all rows as arrays: a record a slot, written once when a row takes it.

A step reads a slice of them. No row is asked for its parameters again, and no Python runs for a row
that is greedy or has a plain temperature.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.request import Request
from engine.sequence import Sequence

Records = NDArray[np.void]
"""Parameter records of some rows, [rows]; fields as in `RECORD`."""

RECORD = np.dtype(
    [
        ("seed", np.uint64),
        ("divisor", np.float32),  # of the scores; 1 for a greedy row
        ("is_greedy", np.bool_),
        ("top_k", np.int64),  # 0 keeps all
        ("top_p", np.float32),
        ("min_p", np.float32),
        ("is_plain", np.bool_),  # neither penalties nor bias
        ("min_tokens", np.int64),  # 0 where no end token ends the row
        ("top_logprobs", np.int64),  # -1 when none are asked for
    ]
)

IDLE = (0, 1.0, True, 0, 1.0, 0.0, True, 0, -1)
"""The record of a slot without a row: the cheapest there is."""


@dataclass(frozen=True, slots=True)
class Draws:
    """What `n` rows of scores need to become tokens.

    Args:
        records: whose parameters, [n].
        positions: index each token will have among its row's emitted tokens, [n] int64.
    """

    records: Records
    positions: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.records)

    @property
    def sampled(self) -> NDArray[np.int64]:
        """Which rows carry noise."""
        return np.flatnonzero(~self.records["is_greedy"])

    @property
    def truncated(self) -> NDArray[np.int64]:
        """Which rows exclude tokens by top-k, top-p or min-p."""
        held = self.records
        return np.flatnonzero((held["top_k"] > 0) | (held["top_p"] < 1) | (held["min_p"] > 0))

    def take(self, rows: NDArray[np.int64]) -> Draws:
        """Return the draws of some rows, [len(rows)]."""
        return Draws(self.records[rows], self.positions[rows])


class RowParams:
    """The records of all slots, and which row each slot's record was written for.

    Seats are compared by identity at every step, so that a row that joined, moved or took over a
    slot is noticed here and nobody has to tell.
    """

    def __init__(self, num_slots: int = 1) -> None:
        self._records: Records = np.full(num_slots, np.array(IDLE, dtype=RECORD))
        self._rows: list[Sequence | None] = [None] * num_slots

    def seat(self, rows: Iterable[tuple[int, Sequence]]) -> None:
        """Make the records of some slots those of the rows that are in them now."""
        for slot, row in rows:
            if slot >= len(self._rows) or self._rows[slot] is not row:
                self._write(slot, row)

    def leave(self, row: Sequence) -> None:
        """Make the slots of a row idle."""
        for slot, held in enumerate(self._rows):
            if held is row:
                self._rows[slot] = None
                self._records[slot] = IDLE

    def records(self, first: int, num_rows: int) -> Records:
        """Return the records of slots `first .. first + num_rows`, [num_rows]; not to be kept."""
        self._reserve(first + num_rows)
        return self._records[first : first + num_rows]

    def _write(self, slot: int, row: Sequence) -> None:
        self.leave(row)
        self._reserve(slot + 1)
        self._rows[slot] = row
        self._records[slot] = record_of(row.request, row.seed)

    def _reserve(self, num_slots: int) -> None:
        missing = num_slots - len(self._rows)
        if missing > 0:
            idle = np.full(missing, np.array(IDLE, dtype=RECORD))
            self._records = np.concatenate([self._records, idle])
            self._rows += [None] * missing


def record_of(request: Request, seed: int) -> tuple[Any, ...]:
    """Return the record of one row, in the order of `RECORD`."""
    params = request.sampling
    return (
        seed,
        params.divisor,
        params.temperature == 0,
        params.top_k,
        params.top_p,
        params.min_p,
        params.is_plain,
        0 if request.ignore_eos else params.min_tokens,
        params.top_logprobs if params.logprobs else -1,
    )
