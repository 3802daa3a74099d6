"""Reasoning and text of one row, told piece by piece: what a search of the whole reply finds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.reasoning import ReasoningTags, ReplyText
from engine.request import Reasoning
from engine.testing import tiny_model

CLOSING = 260

IDS = st.lists(st.integers(0, 4), max_size=14)
TAGS = st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple)


def split_by_search(
    ids: list[int], tags: ReasoningTags, reasoning: Reasoning
) -> tuple[list[int], list[int]]:
    """Reasoning and text of a whole reply: the rule, by searching."""
    first = 0
    if reasoning is Reasoning.OPTIONAL:
        first = len(tags.opening)
        if tuple(ids[:first]) != tags.opening:
            return [], ids
    if reasoning is Reasoning.NONE:
        return [], ids
    size = len(tags.closing)
    for end in range(first + size, len(ids) + 1):
        if tuple(ids[end - size : end]) == tags.closing:
            return ids[first : end - size], ids[end:]
    return ids[first:], []


@given(IDS, TAGS, TAGS, st.sampled_from(list(Reasoning)))
def test_pieces_are_what_a_search_of_the_whole_reply_finds(
    ids: list[int], opening: tuple[int, ...], closing: tuple[int, ...], reasoning: Reasoning
) -> None:
    tags = ReasoningTags(opening, closing)
    text = ReplyText(lambda token: b"abcde"[token : token + 1], (), tags, reasoning)
    said = [text.push(token) for token in ids] + [text.finish()]
    inner, outer = split_by_search(ids, tags, reasoning)
    assert "".join(item.reasoning for item in said) == "".join("abcde"[token] for token in inner)
    assert "".join(item.text for item in said) == "".join("abcde"[token] for token in outer)
    has_block = reasoning is Reasoning.OPEN or ids[: len(opening)] == list(opening)
    if reasoning is not Reasoning.NONE and has_block:
        assert text.reasoning_tokens == len(ids) - len(outer)
    else:
        assert text.reasoning_tokens == 0


def test_a_stop_string_never_spans_the_tag() -> None:
    """Neither what it begins with in the reasoning nor what it goes on with is held back."""
    text = ReplyText(
        lambda token: bytes([token]), ("ab",), ReasoningTags((1,), (2,)), Reasoning.OPEN
    )
    said = [text.push(token) for token in (*b"xa", 2, *b"by")]
    assert [item.reasoning for item in said] == ["x", "a", "", "", ""]
    assert [item.text for item in said] == ["", "", "", "b", "y"]


def test_an_unfinished_character_before_the_tag_belongs_to_the_reasoning() -> None:
    text = ReplyText(lambda token: bytes([token]), (), ReasoningTags((1,), (2,)), Reasoning.OPEN)
    said = [text.push(token) for token in (0xE6, 0x97, 2, 0xA5)]
    assert [item.reasoning for item in said] == ["", "", "\ufffd", ""]
    assert (said[3].text, text.finish().text) == ("\ufffd", "")


def test_characters_that_spell_the_tag_are_no_tag() -> None:
    spelled = list(b"no</think>yes")
    assert CLOSING not in tiny_model().tokenizer.encode("no</think>yes")
    text = ReplyText(
        tiny_model().tokenizer.token_bytes, (), tiny_model().tokenizer.tags, Reasoning.OPEN
    )
    said = [text.push(token) for token in (*spelled, CLOSING, *spelled)]
    assert "".join(item.reasoning for item in said) == "no</think>yes"
    assert "".join(item.text for item in said) == "no</think>yes"
