"""Acceptance never emits a token the target would not have chosen itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.verify import accept_match

ids = st.integers(0, 3)


@given(chosen=st.lists(ids, min_size=1, max_size=6), data=st.data())
def test_emitted_tokens_are_the_targets_own_choices(chosen: list[int], data: st.DataObject) -> None:
    draft = data.draw(st.lists(ids, max_size=len(chosen) - 1))
    verdict = accept_match(chosen, draft)
    assert list(verdict.tokens) == chosen[: len(verdict.tokens)]
    assert list(verdict.tokens[: verdict.num_accepted]) == draft[: verdict.num_accepted]
    assert len(verdict.tokens) == verdict.num_accepted + 1


@given(chosen=st.lists(ids, min_size=1, max_size=6), data=st.data())
def test_acceptance_stops_only_at_a_disagreement(chosen: list[int], data: st.DataObject) -> None:
    draft = data.draw(st.lists(ids, max_size=len(chosen) - 1))
    accepted = accept_match(chosen, draft).num_accepted
    assert accepted == len(draft) or draft[accepted] != chosen[accepted]


def test_padding_behind_the_drafts_is_ignored() -> None:
    assert accept_match([5, 6, 9, 9], [5]).tokens == (5, 6)
