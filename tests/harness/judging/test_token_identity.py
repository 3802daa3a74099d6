"""Replies are their reference's, or part from it only at judged near-ties."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.judging.token_identity import (
    ReplyIdentity,
    compare_reply,
    first_difference,
    sum_up,
)
from harness.store.rows import DivergenceRow

IDS = st.lists(st.integers(0, 3), max_size=6)
NEAR = DivergenceRow(
    trial_id="t", prompt_id="p", reference="serial", position=1, gap=1e-4, epsilon=2e-4
)


@given(IDS, IDS)
def test_the_first_difference_ends_the_common_prefix(one: list[int], other: list[int]) -> None:
    position = first_difference(one, other)
    assert (position is None) == (one == other)
    if position is not None:
        assert one[:position] == other[:position]
        assert one[position : position + 1] != other[position : position + 1]


def test_equal_replies_match_whatever_was_judged() -> None:
    assert compare_reply([1, 2], [1, 2], []) == ReplyIdentity(tokens=2)


def test_a_difference_nobody_judged_is_a_problem() -> None:
    assert compare_reply([1, 2], [1, 3], []).problem == "differs at token 1 and was not judged"


def test_a_reply_that_ends_early_differs_at_its_end() -> None:
    assert "differs at token 2" in compare_reply([1, 2], [1, 2, 3], []).problem


def test_a_near_tie_explains_a_difference_and_is_kept() -> None:
    assert compare_reply([1, 2], [1, 3], [NEAR]) == ReplyIdentity(tokens=2, near_ties=(NEAR,))


@pytest.mark.parametrize("gap", [2e-4, 0.3, float("inf"), None])
def test_a_clear_call_is_a_problem_also_behind_a_near_tie(gap: float | None) -> None:
    clear = replace(NEAR, position=5, gap=gap)
    problem = compare_reply([1, 2], [1, 3], [NEAR, clear]).problem
    assert problem.startswith("differs at token 5")


@pytest.mark.parametrize(
    ("tokens", "near_ties", "is_allowed"),
    [(64, 1, True), (64, 2, False), (9999, 2, False), (10_000, 2, True), (20_000, 5, False)],
)
def test_one_near_tie_in_5000_tokens_is_the_most(
    tokens: int, near_ties: int, is_allowed: bool
) -> None:
    replies = [("p", ReplyIdentity(tokens=tokens, near_ties=(NEAR,) * near_ties))]
    assert (not sum_up(replies).problems) == is_allowed


@given(st.lists(st.sampled_from(["", "differs"]), max_size=8))
def test_sums_count_what_matches(problems: list[str]) -> None:
    verdict = sum_up((f"p{n}", ReplyIdentity(tokens=3, problem=p)) for n, p in enumerate(problems))
    assert verdict.replies == len(problems)
    assert verdict.matching == problems.count("")
    assert verdict.tokens == 3 * len(problems)
    assert len(verdict.problems) == len(problems) - verdict.matching
    assert all(one < other for one, other in pairwise(verdict.problems))
