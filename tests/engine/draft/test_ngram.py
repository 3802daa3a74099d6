"""Look-up drafting proposes what really followed, cheaply, and only where it pays."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.draft.ngram import DRAFTS_BY_MATCH, MAX_MATCH, NgramDrafter
from engine.draft.source import DraftRequest
from engine.reasoning import ReplyText
from engine.request import Request
from engine.routing import route
from engine.sequence import Sequence


def row(ids: list[int]) -> Sequence:
    """A sequence with a prompt."""
    request = Request(prompt_ids=tuple(ids), request_id="r")
    return Sequence(request, route(EngineConfig(), request), 0, ReplyText(lambda _: b"", ()))


def longest_match(ids: list[int]) -> tuple[int, int]:
    """The same look-up by brute force: (match length, index of what followed)."""
    for length in range(min(MAX_MATCH, len(ids)), 0, -1):
        suffix = ids[len(ids) - length :]
        for end in range(len(ids) - 1, length - 1, -1):
            if ids[end - length : end] == suffix:
                return length, end
    return 0, 0


@given(ids=st.lists(st.integers(0, 3), min_size=1, max_size=40), budget=st.integers(1, 8))
def test_a_fresh_row_is_offered_what_followed_its_longest_recent_match(
    ids: list[int], budget: int
) -> None:
    length, end = longest_match(ids)
    proposal = NgramDrafter().propose([DraftRequest(row(ids), budget)])[0].ids
    most = min(budget, DRAFTS_BY_MATCH[length - 1])
    assert proposal == (ids[end : end + most] if length else [])


@given(
    ids=st.lists(st.integers(0, 3), min_size=1, max_size=10),
    more=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=6),
)
def test_an_index_grown_step_by_step_finds_what_a_fresh_one_finds(
    ids: list[int], more: list[list[int]]
) -> None:
    grown, sequence = NgramDrafter(), row(ids)
    for tokens in more:
        grown.propose([DraftRequest(sequence, 4)])
        sequence.ids.extend(tokens)
    fresh = NgramDrafter().propose([DraftRequest(row(sequence.ids), 4)])
    assert grown.propose([DraftRequest(sequence, 4)]) == fresh


def test_closing_a_row_forgets_it_and_closing_twice_is_harmless() -> None:
    drafter, sequence = NgramDrafter(), row([1, 2, 1])
    drafter.propose([DraftRequest(sequence, 2)])
    drafter.close(sequence)
    drafter.close(sequence)
    assert not drafter._rows
