"""Where one forward reads and writes the cache: a value that all layers of the step share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import mlx.core as mx

from engine.shapes import round_up


@dataclass(frozen=True)
class StepShape:
    """Where one forward reads and writes.

    Every row writes `width` positions from its start. Only the first `counts` of them are tokens;
    the rest is padding, which the row's next step overwrites. A row of count 0 is idle: it is
    computed and means nothing. An idle slot that holds a live row needs that row's length as its
    start; a free slot may have any start, and its neighbours' keeps the step uniform.

    Args:
        first: first slot.
        starts: cache length of each row, [rows].
        counts: real tokens of each row, [rows]; 0 to `width`.
        width: positions written per row.
        read_block: the read extent is rounded up to a multiple of this, for stable shapes.
    """

    first: int
    starts: tuple[int, ...]
    counts: tuple[int, ...]
    width: int
    read_block: int = 1

    def __post_init__(self) -> None:
        assert len(self.starts) == len(self.counts)
        assert all(0 <= count <= self.width for count in self.counts)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.starts)

    @property
    def slots(self) -> slice:
        """The slots of the step."""
        return slice(self.first, self.first + self.rows)

    @property
    def end(self) -> int:
        """Positions the cache must have room for."""
        return max(self.starts) + self.width

    @property
    def extent(self) -> int:
        """Positions the step reads; of new rows, just those it writes."""
        return round_up(self.end, self.read_block) if max(self.starts) else self.end

    @property
    def is_uniform(self) -> bool:
        """True when every row has the same length: plain slices do."""
        return min(self.starts) == max(self.starts)

    @property
    def is_full(self) -> bool:
        """True when no row has padding."""
        return min(self.counts) == self.width

    @cached_property
    def offset(self) -> int | mx.array:
        """Position of the first written token: a number, or [rows] when they differ."""
        return self.starts[0] if self.is_uniform else mx.array(self.starts, dtype=mx.int32)

    @cached_property
    def positions(self) -> mx.array:
        """Absolute position of every written token, [rows, width]."""
        return mx.array(self.starts, dtype=mx.int32)[:, None] + mx.arange(self.width)[None]

    @cached_property
    def lengths(self) -> mx.array:
        """Real tokens of each row, [rows]."""
        return mx.array(self.counts, dtype=mx.int32)

    @cached_property
    def is_token(self) -> mx.array:
        """True where a row has a real token, [rows, width]."""
        return mx.arange(self.width)[None] < self.lengths[:, None]

    @cached_property
    def _masks(self) -> dict[int | None, mx.array]:
        return {}

    def mask(self, window: int | None) -> mx.array:
        """Return [rows, 1, width, extent], true where a query may look; rows=1 when uniform.

        Built once for all layers of the step.
        """
        if window not in self._masks:
            self._masks[window] = self._mask(window)
        return self._masks[window]

    def _mask(self, window: int | None) -> mx.array:
        positions = self.positions[:1] if self.is_uniform else self.positions
        query = positions[:, None, :, None]
        key = mx.arange(self.extent)[None, None, None]
        seen = key <= query
        return seen if window is None else seen & (key > query - window)
