"""Interrupts strike where they may, wait where they must, and are not lost."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from harness.running import interrupts
from harness.running.interrupts import interruptible, last_words, uninterrupted


def press(number: signal.Signals = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


def is_interrupted(work: Callable[[], None]) -> bool:
    """Run a function that an interrupt may end."""
    try:
        with interruptible():
            work()
    except KeyboardInterrupt:
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda item: item.name)
def test_an_interrupt_strikes_and_old_handlers_come_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    assert is_interrupted(lambda: press(number))
    assert signal.getsignal(number) is before


def test_an_interrupt_waits_until_what_must_be_whole_is_whole() -> None:
    steps = []

    def work() -> None:
        with uninterrupted():
            press()
            steps.append("saved")
            with uninterrupted():
                press(signal.SIGTERM)
            steps.append("all of it")
        steps.append("not reached")

    assert is_interrupted(work)
    assert steps == ["saved", "all of it"]


def test_an_interrupt_told_twice_strikes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal signals the whole group, and the process above may pass it on."""
    monkeypatch.setattr(interrupts, "monotonic", lambda: 7.0)
    cleaned = []

    def work() -> None:
        try:
            press()
        finally:
            press()
            cleaned.append("up")

    assert is_interrupted(work)
    assert cleaned == ["up"]


def failing() -> None:
    with uninterrupted():
        press()
        raise ZeroDivisionError


def test_an_interrupt_behind_an_error_strikes_later() -> None:
    def work() -> None:
        with pytest.raises(ZeroDivisionError):
            failing()
        with uninterrupted():
            """A save without an error of its own."""

    assert is_interrupted(work)


def test_an_interrupt_that_was_swallowed_strikes_again() -> None:
    seen: list[str] = []

    def work() -> None:
        # As Python does with what is raised in a destructor.
        with suppress(KeyboardInterrupt):
            press()
        seen.append("swallowed")
        with uninterrupted():
            seen.append("saved")
        seen.append("not reached")

    assert is_interrupted(work)
    assert seen == ["swallowed", "saved"]


def test_nothing_interrupts_the_last_words_and_nothing_is_left_of_it() -> None:
    with interruptible():
        with last_words():
            press()
        with uninterrupted():
            pass
    with interruptible(), uninterrupted():
        pass


def test_a_thread_of_its_own_leaves_handlers_alone() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with interruptible(), uninterrupted():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
