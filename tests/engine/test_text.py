"""Streamed text is the decoded text, whatever the cuts; stop strings never show."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.text import TextStream

STOPS = st.lists(st.text("ab\n<|é", min_size=1, max_size=4), max_size=3).map(tuple)
BYTES = st.one_of(st.binary(max_size=40), st.text("ab\n<|é日😀\ufffd", max_size=30).map(str.encode))


def stream(pieces: Sequence[bytes], stop: tuple[str, ...] = ()) -> TextStream:
    return TextStream(lambda token_id: pieces[token_id], stop)


def pushed(pieces: Sequence[bytes], stop: tuple[str, ...] = ()) -> list[str]:
    text = stream(pieces, stop)
    return [text.push(index) for index in range(len(pieces))] + [text.finish()]


def before_stop(text: str, stop: tuple[str, ...]) -> str:
    """The rule, character by character: the row ends with the first stop string to be complete."""
    for end in range(1, len(text) + 1):
        found = [item for item in stop if text[:end].endswith(item)]
        if found:
            return text[: end - max(map(len, found))]
    return text


@st.composite
def cut_bytes(draw: st.DrawFn) -> list[bytes]:
    data = draw(BYTES)
    places = sorted(draw(st.lists(st.integers(0, len(data)), max_size=8)))
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


@given(cut_bytes())
def test_any_cut_of_the_bytes_gives_the_decoded_text(pieces: list[bytes]) -> None:
    assert "".join(pushed(pieces)) == b"".join(pieces).decode("utf-8", "replace")


@given(cut_bytes(), STOPS)
def test_any_cut_ends_at_the_first_complete_stop_string(
    pieces: list[bytes], stop: tuple[str, ...]
) -> None:
    whole = b"".join(pieces).decode("utf-8", "replace")
    assert "".join(pushed(pieces, stop)) == before_stop(whole, stop)


@given(cut_bytes(), STOPS)
def test_no_more_is_held_than_what_may_begin_a_stop_string(
    pieces: list[bytes], stop: tuple[str, ...]
) -> None:
    text = stream(pieces, stop)
    sent, seen = "", b""
    for index, piece in enumerate(pieces):
        sent, seen = sent + text.push(index), seen + piece
        if text.stopped:
            return
        held = certain_text(seen).removeprefix(sent)
        assert not held or any(item.startswith(held) and item != held for item in stop)


def certain_text(data: bytes) -> str:
    """The text that every continuation of the bytes agrees on."""
    more = [b"", b"a", *(bytes([second, 0x80, 0x80]) for second in range(0x80, 0xC0))]
    texts = [(data + end).decode("utf-8", "replace") for end in more]
    agreed = takewhile(lambda chars: len(set(chars)) == 1, zip(*texts, strict=False))
    return "".join(chars[0] for chars in agreed)


@given(cut_bytes(), STOPS)
def test_stopped_is_told_exactly_when_a_stop_string_is_complete(
    pieces: list[bytes], stop: tuple[str, ...]
) -> None:
    text = stream(pieces, stop)
    for index in range(len(pieces)):
        text.push(index)
    text.finish()
    whole = b"".join(pieces).decode("utf-8", "replace")
    assert text.stopped == any(item in whole for item in stop)


@pytest.mark.parametrize(
    ("pieces", "stop", "expected"),
    [
        pytest.param(["ple", "as"], ("<|eot|>assistant",), "pleas", id="nothing-ambiguous"),
        pytest.param(["a", "\n", "User"], ("\nUser:",), "a\nUser", id="budget-inside-a-stop"),
        pytest.param(["x<", "|im_", "end"], ("<|im_end|>",), "x<|im_end", id="end-inside-a-stop"),
        pytest.param(["ab", " c"], (" cd",), "ab c", id="cancelled-inside-a-stop"),
        pytest.param(["no", "w", "he", "re"], ("whe",), "no", id="stop-across-tokens"),
        pytest.param(["aab"], ("ab", "b"), "a", id="longest-of-two-that-end-together"),
        pytest.param(["abc"], ("abc", "b"), "a", id="first-complete-wins"),
    ],
)
def test_a_held_tail_comes_out_at_the_end_and_a_stop_string_does_not(
    pieces: list[str], stop: tuple[str, ...], expected: str
) -> None:
    assert "".join(pushed([piece.encode() for piece in pieces], stop)) == expected


def test_text_that_cannot_begin_a_stop_string_is_sent_at_once() -> None:
    assert pushed([b"ple", b"as", b" <", b"b"], ("<|im_end|>",)) == ["ple", "as", " ", "<b", ""]


SPLIT = (
    "48 69 20|f0 9f|98|80|20 e6 97|a5|e6 9c ac|20|c4|8f|c3 a1 62|f0 9f 91 a8|e2 80|8d f0 9f 91 a9"
)


@pytest.mark.parametrize("shift", range(4))
def test_characters_split_over_tokens_arrive_whole(shift: int) -> None:
    data = b"x" * shift + bytes.fromhex(SPLIT.replace("|", ""))
    cuts = [len(bytes.fromhex(piece)) for piece in SPLIT.split("|")]
    places = [sum(cuts[:count]) for count in range(len(cuts) + 1)]
    pieces = [data[start:end] for start, end in pairwise(places)]
    pieces.append(data[places[-1] :])
    deltas = pushed(pieces)
    assert "".join(deltas) == "x" * shift + "Hi 😀 日本 ďáb👨\u200d👩"
    assert "\ufffd" not in "".join(deltas)


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param(["a\ufffdb", "\ufffd"], id="genuine-replacement-character"),
        pytest.param(["e", "\u0301", "x"], id="combining-mark"),
        pytest.param(["🏳", "\ufe0f", "\u200d", "🌈"], id="joined-emoji"),
        pytest.param(["A 世", "a", "b"], id="ideograph"),
        pytest.param(["    ", ".", " ,", "'s"], id="blanks-before-punctuation"),
        pytest.param(["\r\n", "\r", "\n"], id="line-ends"),
    ],
)
def test_whole_characters_are_sent_once_as_they_are(pieces: list[str]) -> None:
    assert pushed([piece.encode() for piece in pieces]) == [*pieces, ""]


def test_an_unfinished_character_at_the_end_becomes_one_replacement() -> None:
    assert pushed([b"a\xf0\x9f", b"\x98"]) == ["a", "", "\ufffd"]


def test_nothing_comes_out_after_a_stop_string() -> None:
    assert pushed([b"a.", b"b", b"\xc3"], (".",)) == ["a", "", "", ""]
