"""Adaptive draft budgets: within bounds, parked when they do not pay, tried again, and fit."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import MAX_DRAFT_TOKENS, STEP_WIDTHS, EngineConfig
from engine.costs import StepCosts, step_costs
from engine.draft.acceptance import RowAcceptance
from engine.draft.budget import (
    PROBE_BUDGET,
    PROBE_EVERY,
    DraftBudgets,
    Outcome,
    best_width,
)
from engine.reasoning import ReplyText
from engine.request import Request
from engine.routing import route
from engine.sequence import Sequence
from engine.shapes import step_width

CPU = {1: 1.0, 2: 1.1, 4: 1.3, 8: 1.6, 16: 2.2}
"""docs/decisions/ngram.md"""

PARKED_WITHIN = 24
"""Steps of rejected drafts after which a row is parked, at those costs."""

costs_of = st.builds(
    step_costs,
    st.fixed_dictionaries(
        {(rows, width): st.floats(1, 50) for rows in (1, 8) for width in STEP_WIDTHS}
    ),
    ahead=st.floats(0, 0.5),
    drafted=st.sampled_from([0.0, 0.1, 1.0]),
)


def cpu_costs(drafted: float = 0.0) -> StepCosts:
    return step_costs(
        {(1, width): cost for width, cost in CPU.items()}, ahead=0.06, drafted=drafted
    )


def row(drafts: int = 7, max_tokens: int = 10_000) -> Sequence:
    config = EngineConfig(num_draft_tokens=drafts, draft_budgets="fixed")
    request = Request(prompt_ids=(1,), max_tokens=max_tokens)
    return Sequence(request, route(config, request), 0, ReplyText(lambda _: b"", ()))


def step(budgets: DraftBudgets, sequence: Sequence, accepts: bool) -> int:
    """One step of a row alone whose drafter uses its budget up; returns the budget."""
    budget = budgets.budget(sequence, 1)
    verified = min(budget, budgets.fit([(sequence, budget)]) - 1)
    budgets.observe([Outcome(sequence, budget, verified, verified * accepts)])
    return budget


@given(
    costs=costs_of,
    drafts=st.integers(0, MAX_DRAFT_TOKENS),
    max_tokens=st.integers(1, 40),
    pending=st.integers(0, 1),
    steps=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=40),
)
def test_a_budget_is_never_above_the_setting_or_what_remains(
    costs: StepCosts,
    drafts: int,
    max_tokens: int,
    pending: int,
    steps: list[tuple[int, int]],
) -> None:
    budgets, sequence = DraftBudgets(costs), row(drafts, max_tokens)
    for proposed, accepted in steps:
        if sequence.remaining < 1:
            break
        budget = budgets.budget(sequence, 1, pending)
        assert 0 <= budget <= max(0, min(drafts, sequence.remaining - 1 - pending))
        budget = budgets.budget(sequence, 1)
        verified = min(budget, proposed)
        agreed = min(verified, accepted)
        budgets.observe([Outcome(sequence, budget, verified, agreed)])
        sequence.ids += [7] * (agreed + 1)


@pytest.mark.parametrize("drafted", [0.0, 0.3], ids=["look-up", "draft model"])
def test_a_row_whose_drafts_are_always_rejected_is_parked_and_tried_once_in_a_while(
    drafted: float,
) -> None:
    budgets, sequence = DraftBudgets(cpu_costs(drafted)), row()
    given_budgets = [step(budgets, sequence, accepts=False) for _ in range(20 * PROBE_EVERY)]

    late = given_budgets[PARKED_WITHIN:]
    trials = [index for index, budget in enumerate(late) if budget]
    assert {late[index] for index in trials} == {PROBE_BUDGET}
    gaps = {after - before for before, after in pairwise(trials)}
    assert gaps == {PROBE_EVERY}


def test_the_schedule_depends_on_counts_alone() -> None:
    def run() -> list[int]:
        budgets, sequence = DraftBudgets(cpu_costs()), row()
        return [step(budgets, sequence, accepts=number % 9 == 0) for number in range(200)]

    assert run() == run()


def test_a_launched_step_counts_for_the_next_trial() -> None:
    budgets, sequence = DraftBudgets(cpu_costs()), row()
    for _ in range(PARKED_WITHIN):
        step(budgets, sequence, accepts=False)
    for _ in range(2 * PROBE_EVERY):
        ahead = budgets.budget(sequence, 1, pending=1)
        step(budgets, sequence, accepts=False)
        assert budgets.budget(sequence, 1) == ahead


@pytest.mark.parametrize("drafts", [1, 3, 7, 15])
def test_a_row_that_is_always_accepted_gets_all_it_may_have(drafts: int) -> None:
    budgets, sequence = DraftBudgets(cpu_costs(drafted=0.05)), row(drafts)
    given_budgets = [step(budgets, sequence, accepts=True) for _ in range(60)]

    assert set(given_budgets[30:]) == {drafts}


def test_a_dear_drafter_is_asked_for_no_more_than_pays() -> None:
    steep = step_costs(
        {(1, 1): 1.0, (1, 2): 1.05, (1, 4): 3.9, (1, 8): 9.0, (1, 16): 20.0}, drafted=0.1
    )
    budgets, sequence = DraftBudgets(steep), row(15)
    given_budgets = [step(budgets, sequence, accepts=True) for _ in range(60)]

    assert set(given_budgets[30:]) == {1}


def test_a_row_that_begins_to_repeat_is_unparked_within_two_trials() -> None:
    budgets, sequence = DraftBudgets(cpu_costs()), row()
    for _ in range(10 * PROBE_EVERY):
        step(budgets, sequence, accepts=False)
    for _ in range(2 * PROBE_EVERY):
        step(budgets, sequence, accepts=True)

    assert {step(budgets, sequence, accepts=True) for _ in range(PROBE_EVERY)} == {7}


def test_an_empty_proposal_costs_no_more_than_the_lost_launch() -> None:
    free = DraftBudgets(step_costs({(1, width): cost for width, cost in CPU.items()}))
    sequence = row()
    for _ in range(500):
        free.observe([Outcome(sequence, asked=7)])

    assert free.budget(sequence, 1) == 7


survivals_of = st.lists(
    st.lists(st.floats(0, 1), max_size=MAX_DRAFT_TOKENS).map(
        lambda rates: tuple(sorted(rates, reverse=True))
    ),
    min_size=1,
    max_size=8,
)


@given(costs=costs_of, survivals=survivals_of, spent=st.floats(0, 5))
def test_the_width_that_fits_has_the_most_expected_tokens_per_cost(
    costs: StepCosts, survivals: list[tuple[float, ...]], spent: float
) -> None:
    def rate(width: int) -> float:
        tokens = sum(1 + sum(survival[: width - 1]) for survival in survivals)
        return tokens / (costs.forward(len(survivals), width) + spent)

    width = best_width(costs, survivals, spent)

    assert width <= step_width(1 + max(map(len, survivals)))
    assert rate(width) == max(rate(other) for other in STEP_WIDTHS)


def test_one_long_draft_does_not_widen_a_batch_that_cannot_use_it() -> None:
    measured = {(1, width): cost for width, cost in CPU.items()}
    measured |= {(8, width): 0.8 + 0.4 * width for width in STEP_WIDTHS}
    budgets = DraftBudgets(step_costs(measured))
    rows = [row() for _ in range(8)]
    for sequence in rows:
        for _ in range(20):
            budgets.observe([Outcome(sequence, 7, 7, 7)])

    assert budgets.fit([(rows[0], 7)]) == 8
    assert budgets.fit([(rows[0], 7), *((other, 0) for other in rows[1:])]) == 1
    assert budgets.fit([(other, 7) for other in rows]) == 8


def test_a_short_draft_does_not_pay_for_its_neighbours_long_one() -> None:
    measured = {(1, width): cost for width, cost in CPU.items()}
    measured |= {(2, width): 1.0 + width for width in STEP_WIDTHS}
    budgets = DraftBudgets(step_costs(measured))
    short, long = row(), row()
    for _ in range(60):
        budgets.observe([Outcome(short, 7, 1, 1), Outcome(long, 7, 7, 0)])

    assert budgets.budget(short, 2) == 7
    assert budgets.budget(long, 2) in {0, PROBE_BUDGET}


def test_a_closed_row_leaves_nothing_behind() -> None:
    budgets, sequence = DraftBudgets(cpu_costs()), row()
    for _ in range(2 * PROBE_EVERY):
        step(budgets, sequence, accepts=False)
    budgets.close(sequence)

    assert budgets.budget(sequence, 1) == 7


@given(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15)), max_size=50))
def test_survival_falls_with_position_and_stays_a_probability(
    drafts: list[tuple[int, int]],
) -> None:
    acceptance = RowAcceptance()
    for verified, accepted in drafts:
        acceptance.add(verified, min(verified, accepted))
    survival = acceptance.survival(MAX_DRAFT_TOKENS)

    assert all(0 <= chance <= 1 for chance in survival)
    assert list(survival) == sorted(survival, reverse=True)
