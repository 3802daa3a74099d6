"""The clock of a trial, and what it saw: instants of requests, and sums over steps.

Imports neither the engine nor mlx: the peer's child process uses this module too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Clock = Callable[[], float]
"""Seconds on a monotonic scale; only differences mean something."""

monotonic: Clock = time.perf_counter


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
