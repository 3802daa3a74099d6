"""Time and memory of a trial: the clock, what it saw, and a sampler of resident memory.

Imports neither the engine nor mlx: the peer's child process uses this module too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import psutil

Clock = Callable[[], float]
"""Seconds on a monotonic scale; only differences mean something."""

monotonic: Clock = time.perf_counter

RSS_INTERVAL_S = 0.05
"""One reading takes about 10 us, so 20 a second stay invisible beside a step of 40 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTimes:
    """When one request was sent and when its tokens were read by the host, on one clock.

    Args:
        first_token_s, last_token_s: None for a reply without tokens.
        first_text_s: the first event that carried visible text; None when there was none.
        ended_s: when the request was known to have ended.
    """

    submitted_s: float
    first_token_s: float | None = None
    first_text_s: float | None = None
    last_token_s: float | None = None
    ended_s: float

    def since_submission(self, instant_s: float | None) -> float | None:
        """Return the seconds from submission to one of the instants, None for none."""
        return None if instant_s is None else instant_s - self.submitted_s


@dataclass(slots=True)
class StepTally:
    """Sums over the decode steps of a trial.

    Attributes:
        full_tokens, full_s: tokens committed by steps at full occupancy, and their time; prefill
            and the drain at the end are not in them.
        seconds: time of all decode steps.
        masked: positions that got a grammar mask.
        parts_s: what the host spent on each part of a step, by the engine's names; empty where
            nobody tells.
    """

    full_tokens: int = 0
    full_s: float = 0.0
    steps: int = 0
    seconds: float = 0.0
    masked: int = 0
    parts_s: dict[str, float] = field(default_factory=dict)

    def add(self, *, is_full: bool, committed: int, seconds: float) -> None:
        """Count one decode step."""
        self.steps += 1
        self.seconds += seconds
        if is_full:
            self.full_tokens += committed
            self.full_s += seconds

    def add_parts(self, parts_s: Mapping[str, float]) -> None:
        """Add the parts of one decode step."""
        for part, seconds in parts_s.items():
            self.parts_s[part] = self.parts_s.get(part, 0.0) + seconds


class RssSampler:
    """A context that records the largest resident memory of processes while it is open.

    Args:
        pids: whose memory is summed up; None is this process. One that is gone counts for nothing.
    """

    def __init__(
        self, interval_s: float = RSS_INTERVAL_S, pids: Sequence[int] | None = None
    ) -> None:
        self._processes = [psutil.Process(pid) for pid in pids or (None,)]
        self._interval_s = interval_s
        self._closing = threading.Event()
        self._peak_bytes = 0
        self._thread = threading.Thread(target=self._sample, name="rss-sampler", daemon=True)

    @property
    def peak_bytes(self) -> int:
        """The largest reading so far, in bytes."""
        return self._peak_bytes

    def __enter__(self) -> Self:
        self._read()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.set()
        self._thread.join()
        self._read()

    def _sample(self) -> None:
        while not self._closing.wait(self._interval_s):
            self._read()

    def _read(self) -> None:
        total = 0
        for process in self._processes:
            with suppress(psutil.Error):
                total += process.memory_info().rss
        self._peak_bytes = max(self._peak_bytes, total)
