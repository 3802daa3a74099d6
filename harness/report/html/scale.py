"""Scales of the charts: from a value to a place in percent of the width, and where ticks go."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

MARGIN = 3.0
"""Percent of the width left free at both ends, where half a mark needs room."""

MIN_GAP = 11.0
"""Percent of the width between two ticks, so that their labels do not touch on a phone."""

_TICK_ORDER = (
    *(1, 2, 0.5, 5, 0.2, 10, 0.1, 20, 0.05, 50, 0.02, 100, 0.01),
    *(1.5, 3, 0.75, 0.3, 4, 0.7, 1.25, 0.8, 1.2, 1.1, 0.9, 2.5, 0.6, 0.4, 7, 30, 70),
    *(1.05, 0.95, 1.15, 0.85, 1.3, 1.4, 1.02, 0.98, 1.01, 0.99),
)
"""Ratios worth a tick, the most telling first; those that find no room are left out."""


@dataclass(frozen=True, slots=True)
class Scale:
    """An even scale from low to high, which must differ."""

    low: float
    high: float

    def at(self, value: float) -> float:
        """Return the place of a value in percent of the width; those outside lie at the ends."""
        share = (value - self.low) / (self.high - self.low)
        return MARGIN + (100 - 2 * MARGIN) * min(max(share, 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class RatioScale:
    """A logarithmic scale of ratios, on which twice as fast and half as fast lie as far from 1."""

    logs: Scale

    def at(self, ratio: float) -> float:
        """Return the place of a ratio in percent of the width."""
        return self.logs.at(math.log(ratio))

    def ticks(self) -> tuple[float, ...]:
        """Return the ratios to mark, in order; 1 is always one of them."""
        taken: list[float] = []
        for ratio in _TICK_ORDER:
            is_inside = self.logs.low <= math.log(ratio) <= self.logs.high
            if is_inside and all(
                abs(self.at(ratio) - self.at(other)) >= MIN_GAP for other in taken
            ):
                taken.append(ratio)
        return tuple(sorted(taken))


def ratio_scale(ratios: Iterable[float], tolerance: float) -> RatioScale:
    """Return a scale that holds the ratios, 1, and twice the tolerance on both sides of it."""
    logs = [math.log(ratio) for ratio in ratios if ratio > 0]
    low = min([*logs, math.log1p(-2 * tolerance)])
    high = max([*logs, math.log1p(2 * tolerance)])
    return RatioScale(Scale(low, high))


def percent(place: float) -> str:
    """Return a place or a width as an attribute of an SVG."""
    return f"{place:.2f}%"
