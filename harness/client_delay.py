"""How late the load client itself is: what it may add to every instant that it reads.

An event loop that slept until bytes came is late by what it did since it woke. One that never
sleeps is late by as long as it has been at work, whatever of that is its own fault. So the time
since the loop last woke from a wait bounds the delay of an event from above, and nothing has to be
hooked into the HTTP library. What the operating system let the thread wait for a processor comes on
top, where it tells (Linux: schedstat, the second number, in nanoseconds).
"""

from __future__ import annotations

import selectors
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from harness.clock import Clock

SLEPT_S = 20e-6
"""A wait that is shorter found bytes that were there already; a system call takes about 2 us."""

SCHEDSTAT = Path("/proc/thread-self/schedstat")


@dataclass(slots=True)
class ClientDelay:
    """What a client may have added to the times it measured, summed over its requests.

    Attributes:
        events: instants that were read.
        delay_s: bound on how late they were read, summed.
        stream_s: time from sending to the end, summed over the requests.
    """

    events: int = 0
    delay_s: float = 0.0
    stream_s: float = 0.0

    @property
    def share(self) -> float | None:
        """Most of the measured time that was the client's, 0 to 1; None before any time passed."""
        return self.delay_s / self.stream_s if self.stream_s > 0 else None

    @property
    def per_event_s(self) -> float | None:
        """Mean bound on the lateness of an instant; None without one."""
        return self.delay_s / self.events if self.events else None


class WakeSelector(selectors.DefaultSelector):
    """A selector that knows when it last woke from a wait."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self.woke_s = clock()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for events as any selector does."""
        before_s = self._clock()
        ready = super().select(timeout)
        now_s = self._clock()
        if now_s - before_s > SLEPT_S:
            self.woke_s = now_s
        return ready


def processor_wait_s() -> float:
    """Return how long this thread has waited for a processor so far; 0 where nobody tells."""
    with suppress(OSError, ValueError, IndexError):
        return int(SCHEDSTAT.read_text().split()[1]) / 1e9
    return 0.0
