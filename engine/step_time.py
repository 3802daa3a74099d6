"""Where the time of a step goes on the host, part by part.

MLX builds lazily and computes behind the host's back, so a part is what the host did meanwhile,
never what the device did. The device's time shows where the host waits for it: in `wait`, and in
`launch` where MLX takes no more operations until earlier ones are done (on a CPU nearly always).

- plan: rows admitted and moved, room made in the cache, the next step's slots chosen.
- draft: the drafter asked, its own forwards and waits included, and drafts cut to what is legal.
- build: the forward's ids uploaded and its graph built.
- launch: the forward handed to the device.
- mask: grammar masks filled.
- sample: penalties, masks, draws and log-probabilities built for all positions, and handed over.
- wait: the host waits for the tokens (engine.arrays).
- commit: drafts judged, grammars advanced, text made, drafter and cache told, ended rows freed.

A part that belongs to a step launched ahead counts in the call of Engine.step that did it: what
one call's parts leave of its time is its remainder (the lock, counting, telling events).
"""

from __future__ import annotations

import time
from collections.abc import Callable

PARTS = ("plan", "draft", "build", "launch", "mask", "sample", "wait", "commit")
"""In the order in which a step that is not launched ahead goes through them."""


class StepTimer:
    """Shares out the time of one call of Engine.step, each moment to one part or to none.

    Args:
        clock: seconds; it is read once a lap, which is all that a lap costs.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.start()

    def start(self) -> None:
        """Begin a step: every part is 0."""
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._since_s = self.clock()

    def skip(self) -> float:
        """Give the time since the last reading to no part; returns the reading."""
        self._since_s = self.clock()
        return self._since_s

    def lap(self, part: str) -> float:
        """Give the time since the last reading to one of PARTS; returns the reading."""
        now_s = self.clock()
        self.seconds[part] += now_s - self._since_s
        self._since_s = now_s
        return now_s
