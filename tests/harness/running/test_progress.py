"""What a person sees meanwhile: plain lines in pipes, a bar on a terminal."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.running.progress import (
    UNTOLD_S,
    BarProgress,
    LineProgress,
    Standing,
    TimeLeft,
    progress_for,
    spoken,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_unless_quiet_is_asked_for() -> None:
    assert isinstance(progress_for(Terminal(), is_quiet=False), BarProgress)
    assert isinstance(progress_for(Terminal(), is_quiet=True), LineProgress)
    assert isinstance(progress_for(io.StringIO(), is_quiet=False), LineProgress)


def test_plain_lines_hold_no_control_sequences() -> None:
    stream = io.StringIO()
    lines = LineProgress(stream)
    lines.begin(None, 2)
    lines.turn("m chat serial block 1", 64, 0.5, Standing(0.0, None))
    lines.tokens(1)
    lines.turn("m chat serial block 1", 64, 0.5, Standing(0.5, None))
    lines.done("m chat serial block 1", "64 tokens", 2.5, Standing(1.0, 61.0))
    lines.close()
    told = stream.getvalue()
    assert told == "1/2 m chat serial block 1: 64 tokens in 2.5 s, about 1 min 01 s left\n"


def test_plain_lines_tell_how_far_a_run_is_while_no_trial_ends() -> None:
    """The trials of a block end together, which may be an hour from its beginning."""
    stream, now_s = io.StringIO(), 0.0
    lines = LineProgress(stream, clock=lambda: now_s)
    lines.begin(None, 2)
    for turn in range(10):
        lines.turn("m chat serial block 1", 64, 0.1, Standing(turn / 10, 125.0))
        now_s += UNTOLD_S / 2 + 1
    told = stream.getvalue().splitlines()
    assert told[0] == "0/2 10 % through, about 2 min 05 s left"
    assert len(told) == 4


def test_the_bar_shows_the_trial_its_tokens_and_the_time_left() -> None:
    stream = Terminal()
    bar = BarProgress(stream)
    bar.begin(None, 3)
    bar.turn("m chat serial", 64, 0.5, Standing(1.5, None))
    bar.tokens(5)
    bar.done("m chat serial", "64 tokens", 9.0, Standing(2.0, 90.0))
    bar.note("something [odd] happened")
    bar.close()
    told = stream.getvalue()
    assert "something [odd] happened" in told
    assert "2/3" in told
    assert "1 min 30 s left" in told


def test_the_time_left_is_shown_beside_the_end_of_a_name_of_any_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    bar = BarProgress(stream)
    bar.begin(3600.0, 3)
    bar.turn(
        f"model chat serial+spec{'@setting=1' * 9}@num_draft_tokens=3 block 1",
        64,
        1,
        Standing(0.0, 3600.0),
    )
    bar.tokens(5)
    bar.close()
    last = stream.getvalue().rsplit("_tokens=3 block 1", 1)[1]
    assert "0/3" in last
    assert "5/64 tok" in last
    assert "about 1 h 00 min left" in last


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "not known"),
        (-3.0, "about 0 s"),
        (59.4, "about 59 s"),
        (60.0, "about 1 min 00 s"),
        (3600.0, "about 1 h 00 min"),
    ],
)
def test_durations_are_spoken(seconds: float | None, words: str) -> None:
    assert words in spoken(seconds)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(1, 100)), min_size=1))
def test_a_trial_seen_before_is_taken_to_need_its_mean_again(seen: list[tuple[str, float]]) -> None:
    left = TimeLeft()
    for key, _ in seen:
        left.expect((key,), 7.0)
    assert left.estimate() is None
    for key, seconds in seen:
        left.record((key,), 7.0, seconds)
    mean = sum(seconds for _, seconds in seen) / len(seen)
    key = seen[0][0]
    same = [seconds for other, seconds in seen if other == key]
    assert left.estimate() == pytest.approx(0, abs=1e-6)
    left.expect((key,), 7.0)
    assert left.estimate() == pytest.approx(sum(same) / len(same))
    left.drop((key,), 7.0)
    left.expect(("new",), 14.0)
    assert left.estimate() == pytest.approx(2 * mean)
