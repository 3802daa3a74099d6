"""What a machine does to the speed of trials: noise that remembers, drift, outliers."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Protocol


class Disturbed(Protocol):
    """How strongly something is disturbed; Pace is one."""

    @property
    def noise(self) -> float:
        """Standard deviation of the logarithm of the time of a turn."""
        ...

    @property
    def drift_per_trial(self) -> float:
        """Change of the logarithm of the time from one trial to the next."""
        ...

    @property
    def outlier_rate(self) -> float:
        """Share of turns that are slowed down."""
        ...

    @property
    def outlier_factor(self) -> float:
        """How many times as long these take."""
        ...


@dataclass(slots=True)
class Disturbances:
    """The state of one machine, moved on by every turn of a trial on it, whichever cell runs.

    The noise of turn t is an autoregression of order one with variance 1, which each cell scales
    by its own `noise`: n_t = a n_(t-1) + sqrt(1 - a^2) e_t with standard normal e_t.

    Args:
        autocorrelation: a, from 0 (independent) to 1 (excluded); how much of the noise is still
            there a turn later.
    """

    seed: int
    autocorrelation: float = 0.0
    trials: float = 0.0
    _level: float = field(init=False)
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(f"disturbances/{self.seed}")
        self._level = self._random.gauss()

    def next_factor(self, to: Disturbed, share: float = 1.0) -> float:
        """Return what the times of the next turn are multiplied by.

        Args:
            share: of its trial, which is how far the drift goes on.
        """
        fresh, is_outlier = self._random.gauss(), self._random.random() < to.outlier_rate
        if self.trials:
            rest = math.sqrt(1 - self.autocorrelation**2)
            self._level = self.autocorrelation * self._level + rest * fresh
        log = to.noise * self._level + to.drift_per_trial * self.trials
        self.trials += share
        return math.exp(log) * (to.outlier_factor if is_outlier else 1.0)
