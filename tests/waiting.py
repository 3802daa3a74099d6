"""Waiting for what must come: the limit only ends a hang, and no machine is that slow."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil

WAIT_S = 120.0


def wait_for(holds: Callable[[], object]) -> None:
    """Return when something holds; fails when it never does."""
    deadline_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline_s, "it never came true"
        time.sleep(0.005)


def is_gone(pid: int) -> bool:
    """Return whether a process has ended; one that nobody has asked how it ended is gone too."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
