"""Waiting for what must come: the limit only ends a hang, and no machine is that slow."""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_S = 120.0


def wait_for(holds: Callable[[], object]) -> None:
    """Return when something holds; fails when it never does."""
    deadline_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline_s, "it never came true"
        time.sleep(0.005)
