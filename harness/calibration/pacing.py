"""Clocks on which an engine double keeps time: one that jumps, and the one of the machine."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from harness.trials.clock import monotonic

SPIN_S = 0.002
"""The last stretch of a wait is spun: a sleep comes back up to a millisecond late."""


class PacedClock(Protocol):
    """A clock that can also be waited on."""

    def __call__(self) -> float:
        """Return the seconds now; only differences mean something."""
        ...

    def wait_until(self, instant_s: float) -> float:
        """Come back at the instant, at once when it has passed; returns the seconds then."""
        ...


@dataclass(slots=True)
class VirtualClock:
    """A clock that stands still but for waits, which take no time at all."""

    now_s: float = 0.0

    def __call__(self) -> float:
        """Return the seconds waited so far."""
        return self.now_s

    def wait_until(self, instant_s: float) -> float:
        """Jump to the instant."""
        self.now_s = max(self.now_s, instant_s)
        return self.now_s


class RealClock:
    """The clock of the harness; waits end within microseconds of their instant."""

    def __call__(self) -> float:
        """Return the seconds of the harness's clock."""
        return monotonic()

    def wait_until(self, instant_s: float) -> float:
        """Sleep, then spin."""
        now_s = monotonic()
        if instant_s - now_s > SPIN_S:
            time.sleep(instant_s - now_s - SPIN_S)
        while now_s < instant_s:
            now_s = monotonic()
        return now_s
