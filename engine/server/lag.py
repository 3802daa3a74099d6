"""How late the event loop is: what every connection waits for, whatever it waits for beside.

A timer is due every PERIOD_S; how much later it runs is the loop's lag at that moment. A loop that
is held for long misses timers that were due meanwhile, so those are counted with the lag they would
have had: the shares are shares of time, not of timers that ran.
"""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import Sequence
from itertools import accumulate

PERIOD_S = 0.01

BOUNDS_S: tuple[float, ...] = tuple(0.05 * 2 ** (step / 4) for step in range(-28, 29))
"""Upper bounds of the counts, 0.4 ms to 6.4 s; each is a fifth above the one before."""


class LoopLag:
    """Counts the lag of the loop it is started in.

    Attributes:
        counts: moments by lag, one count for each of BOUNDS_S and one for what is above.
        total_s: the sum of them.
        longest_s: the largest lag.
    """

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.total_s = 0.0
        self.longest_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Count from now on; must be called in the loop."""
        self._wait(asyncio.get_running_loop())

    def stop(self) -> None:
        """Count no more; must be called in the loop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def note(self, lag_s: float) -> None:
        """Count a timer that ran so late, and those that were due before it ran."""
        self.longest_s = max(self.longest_s, lag_s)
        while lag_s >= 0:
            self.counts[bisect.bisect_left(BOUNDS_S, lag_s)] += 1
            self.total_s += lag_s
            lag_s -= PERIOD_S

    def document(self) -> dict[str, float | None]:
        """Return the lag as /stats tells it, in milliseconds."""
        counts, longest_s = tuple(self.counts), self.longest_s
        shares = {"lag_p50_ms": quantile(counts, 0.5), "lag_p99_ms": quantile(counts, 0.99)}
        known = {
            name: None if lag_s is None else min(lag_s, longest_s) for name, lag_s in shares.items()
        }
        return {name: _in_ms(lag_s) for name, lag_s in {**known, "lag_max_ms": longest_s}.items()}

    # A timer by itself takes half of what a task that sleeps does, a hundred times a second.

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        due_s = loop.time() + PERIOD_S
        self._timer = loop.call_at(due_s, self._look, loop, due_s)

    def _look(self, loop: asyncio.AbstractEventLoop, due_s: float) -> None:
        self.note(max(0.0, loop.time() - due_s))
        self._wait(loop)


def quantile(counts: Sequence[int], share: float) -> float | None:
    """Return the lag, in seconds, that a share of the moments does not exceed.

    Args:
        counts: as LoopLag counts, or a difference of two such counts.

    Returns:
        A point inside the bounds it lies in, the last bound where it is above all; None of nothing.
    """
    sums = list(accumulate(counts))
    if not sums or not sums[-1]:
        return None
    place = bisect.bisect_left(sums, share * sums[-1])
    if place >= len(BOUNDS_S):
        return BOUNDS_S[-1]
    low, before = (BOUNDS_S[place - 1], sums[place - 1]) if place else (0.0, 0)
    inside = (share * sums[-1] - before) / counts[place]
    return low + inside * (BOUNDS_S[place] - low)


def _in_ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
