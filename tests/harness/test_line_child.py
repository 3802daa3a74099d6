"""A child that answers in lines: whatever it does, it is told, and it is ended."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from harness.line_child import ChildGoneError, ChildSilentError, LineChild
from tests.waiting import WAIT_S


@contextmanager
def child(script: str) -> Iterator[LineChild]:
    with closing(LineChild((sys.executable, "-c", script), "test-reader")) as started:
        yield started


ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"


def test_what_is_sent_comes_back_and_nothing_is_left_behind() -> None:
    with child(ECHO) as echo:
        echo.send({"text": "Flüsse \u2028 \n"})
        assert echo.receive(WAIT_S) == {"text": "Flüsse \u2028 \n"}
        assert echo.is_alive
    assert not echo.is_alive
    echo.close()
    with pytest.raises(ChildGoneError):
        echo.send({})


@pytest.mark.parametrize(
    "answer", ["no JSON", "[1]", "7", "", "\\xff\\xfe", '{"cut": '], ids=lambda text: text or "none"
)
def test_a_line_that_is_no_object_ends_the_child(answer: str) -> None:
    script = f"import sys\nsys.stdout.buffer.write(b'{answer}\\n'); print('why', file=sys.stderr)"
    with child(script) as garbled:
        with pytest.raises(ChildGoneError):
            garbled.receive(WAIT_S)
        assert not garbled.is_alive


def test_the_last_words_of_one_that_ended_are_told() -> None:
    with child("raise SystemExit('out of memory')") as gone, pytest.raises(ChildGoneError) as told:
        gone.receive(WAIT_S)
    assert str(told.value) == "out of memory"
    with child("raise SystemExit(3)") as gone, pytest.raises(ChildGoneError, match="status"):
        gone.receive(WAIT_S)


def test_a_silent_one_is_ended() -> None:
    with child("import time\ntime.sleep(600)") as silent:
        began_s = time.monotonic()
        with pytest.raises(ChildSilentError):
            silent.receive(0.05)
        assert not silent.is_alive
        assert time.monotonic() - began_s < WAIT_S  # it was ended, not waited for
