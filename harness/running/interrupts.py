"""Ctrl-C and SIGTERM: where they may strike, and where they wait until something is saved."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from harness.trials.clock import monotonic

SAME_PRESS_S = 1.0
"""Signals this soon after one that struck are the same wish told twice: a terminal signals a whole
group of processes, and whoever started us may pass it on as well."""


@dataclass(slots=True)
class _Signals:
    """What came of the signals of this process: handlers are the process's own.

    Args:
        regions: `interruptible` blocks that are entered.
        holds: `uninterrupted` blocks that are entered.
        is_waiting: a signal came and nobody has acted on it yet, as far as is known.
        struck_s: when the last one struck.
    """

    regions: int = 0
    holds: int = 0
    is_waiting: bool = False
    struck_s: float = float("-inf")


_SIGNALS = _Signals()


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGINT and SIGTERM raise KeyboardInterrupt, and put the old handlers back.

    Only the main thread of a process can; in another thread this changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    if not _SIGNALS.regions:
        _SIGNALS.is_waiting, _SIGNALS.struck_s = False, float("-inf")
    _SIGNALS.regions += 1
    try:
        for number in before:
            signal.signal(number, _interrupt)
        yield
    finally:
        _SIGNALS.regions -= 1
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Keep an interrupt of an `interruptible` block waiting until this one is through.

    One that waited behind a block that raised goes on waiting for the next, and so does one that
    struck and was swallowed: Python drops what is raised in a destructor.
    """
    _SIGNALS.holds += 1
    try:
        yield
    finally:
        _SIGNALS.holds -= 1
    if _SIGNALS.is_waiting and not _SIGNALS.holds:
        _strike()


@contextmanager
def last_words() -> Iterator[None]:
    """Let nothing interrupt what an interrupted run still has to say: it has been asked to end."""
    _SIGNALS.holds += 1
    try:
        yield
    finally:
        _SIGNALS.is_waiting = False
        _SIGNALS.holds -= 1


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    if _SIGNALS.holds:
        _SIGNALS.is_waiting = True
    elif monotonic() - _SIGNALS.struck_s >= SAME_PRESS_S:
        _strike()


def _strike() -> None:
    _SIGNALS.is_waiting = True
    _SIGNALS.struck_s = monotonic()
    raise KeyboardInterrupt
