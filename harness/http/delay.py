"""How late the load client itself is: what it may have added to the instants that it read.

Bytes that end a wait of the event loop came when it woke. Bytes that were there when it looked came
after it looked before. So each look at the sockets bounds from below when the bytes it found came,
and the reading of the clock minus that bounds from above how late an event was read. What the
operating system let the thread wait for a processor comes on top, where it tells (Linux: the
second number of schedstat, in nanoseconds).
"""

from __future__ import annotations

import selectors
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx2

from harness.trials.clock import Clock

SLEPT_S = 20e-6
"""A shorter look found bytes that were there already; the system call alone takes about 2 us."""

SCHEDSTAT = Path("/proc/thread-self/schedstat")


@dataclass(slots=True)
class ClientDelay:
    """What a client may have added to the times it measured, summed over its requests.

    Attributes:
        events: instants that were read.
        delay_s: bounds on how late they were read, summed.
        stream_s: time from sending to the end, summed over the requests.
    """

    events: int = 0
    delay_s: float = 0.0
    stream_s: float = 0.0

    @property
    def share(self) -> float | None:
        """Lateness of an event to the time between two of them; None before any time passed."""
        return self.delay_s / self.stream_s if self.stream_s > 0 else None

    @property
    def per_event_s(self) -> float | None:
        """Mean bound on the lateness of an event; None without one."""
        return self.delay_s / self.events if self.events else None


class ArrivalSelector(selectors.DefaultSelector):
    """A selector that keeps since when, at the earliest, each socket has had bytes to read."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._looked_s = clock()
        self._arrivals: dict[int, tuple[float, float]] = {}

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for events as any selector does."""
        before_s, looked_s = self._clock(), self._looked_s
        ready = super().select(timeout)
        self._looked_s = self._clock()
        bound_s = self._looked_s if self._looked_s - before_s > SLEPT_S else looked_s
        for key, events in ready:
            if events & selectors.EVENT_READ:
                first_s, _ = self._arrivals.get(key.fd, (bound_s, bound_s))
                self._arrivals[key.fd] = (first_s, bound_s)
        return ready

    def take(self, fd: int) -> tuple[float, float] | None:
        """Return bounds for the first and the last bytes since the last call, None for none."""
        return self._arrivals.pop(fd, None)


class WatchedStream(httpx2.AsyncByteStream):
    """The body of a response that knows when the bytes it hands out came, at the earliest.

    Attributes:
        arrived_s: of the part that was handed out last.
    """

    def __init__(
        self, inner: httpx2.AsyncByteStream, selector: ArrivalSelector, fd: int, clock: Clock
    ) -> None:
        self._inner = inner
        self._selector = selector
        self._fd = fd
        # The response's head was read with them: what came last may hold a part of the body.
        found = selector.take(fd)
        self.arrived_s = self._next_s = clock() if found is None else found[1]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Hand the parts on."""
        async for part in self._inner:
            found = self._selector.take(self._fd)
            # Where several reads wait for their turn, the oldest one goes first.
            self.arrived_s, self._next_s = found or (self._next_s, self._next_s)
            yield part

    async def aclose(self) -> None:
        """Close the body."""
        await self._inner.aclose()


def processor_wait_s() -> float:
    """Return how long this thread has waited for a processor so far; 0 where nobody tells."""
    with suppress(OSError, ValueError, IndexError):
        return int(SCHEDSTAT.read_text().split()[1]) / 1e9
    return 0.0


def watched(answer: httpx2.Response, selector: ArrivalSelector, clock: Clock) -> WatchedStream:
    """Put a watched stream in place of a response's own, and return it."""
    inner = answer.stream
    assert isinstance(inner, httpx2.AsyncByteStream)
    socket = answer.extensions["network_stream"].get_extra_info("socket")
    answer.stream = stream = WatchedStream(inner, selector, socket.fileno(), clock)
    return stream
