"""How many drafts a row is given, from what its drafts have paid lately and what a step costs.

Two decisions, both free of tensors. Before proposing, every row gets a budget; a row whose drafts
lately cost more than they brought is parked, with a budget of 0, and tried again now and then.
After proposing, one width is chosen for all rows together, since a ragged batch is padded to its
widest row: the one with the most expected tokens per cost.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from itertools import pairwise

from engine.costs import StepCosts
from engine.draft.acceptance import RowAcceptance, expected_tokens
from engine.sequence import Sequence
from engine.shapes import STEP_WIDTHS, step_width

PROBE_EVERY = 16
"""Decode steps from one trial of the parked rows to the next; they are tried in the same step."""

PROBE_BUDGET = 3
"""Most drafts of a row in a trial."""

SMOOTHING = 1 / 12
"""Weight of a step in a row's payoff."""

FIRST_PAYOFF = 0.1
"""Payoff assumed of a new row, in tokens a step."""

LEAST_PAYOFF = -0.06
"""A payoff is not taken as lower, so that a good trial or two end the parking."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a decode step did for one row.

    Args:
        asked: the budget with which the drafter was asked; 0 when it was not.
        verified: drafts that took part in the forward.
        accepted: how many of them the target agreed with.
    """

    sequence: Sequence
    asked: int = 0
    verified: int = 0
    accepted: int = 0


@dataclass(slots=True)
class RowPayoff:
    """What a row's drafts bring, recently.

    Attributes:
        acceptance: while the row is parked, that of a new row: what it did is why it is parked,
            what it would do now is what a trial is to tell.
        payoff: tokens a step they brought beyond those that their cost would have bought.
    """

    acceptance: RowAcceptance = field(default_factory=RowAcceptance)
    payoff: float = FIRST_PAYOFF

    @property
    def is_parked(self) -> bool:
        """True when the row is better off without drafts."""
        return self.payoff < 0

    def add(self, outcome: Outcome, cost: float) -> None:
        """Take a step in which the drafter was asked; `cost` is the row's share, in tokens."""
        self.acceptance.add(outcome.verified, outcome.accepted)
        self.payoff += SMOOTHING * (outcome.accepted - cost - self.payoff)
        self.payoff = max(self.payoff, LEAST_PAYOFF)
        if self.is_parked:
            self.acceptance = RowAcceptance()


class DraftBudgets:
    """The draft budgets of all rows of an engine.

    Args:
        costs: of the target's forwards and of the drafter.
    """

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._rows: dict[int, RowPayoff] = {}
        self._steps = 0

    def budget(self, sequence: Sequence, rows: int, pending: int = 0) -> int:
        """Return the most drafts to ask for in the row's next step; 0 means do not ask.

        Args:
            rows: rows of that step.
            pending: steps of the row that are launched and not observed yet.
        """
        most = min(sequence.route.draft_budget, sequence.remaining - 1 - pending)
        row = self._row(sequence)
        if most <= 0:
            return 0
        if not row.is_parked:
            return self._best_budget(row, rows, most)
        is_due = (self._steps + pending) % PROBE_EVERY == PROBE_EVERY - 1
        return min(PROBE_BUDGET, most) if is_due else 0

    def fit(self, proposed: Iterable[tuple[Sequence, int]]) -> int:
        """Return the step width for rows with drafts of these lengths, one entry for every row."""
        survivals = [self._row(row).acceptance.survival(length) for row, length in proposed]
        longest = max(map(len, survivals))
        return best_width(self._costs, survivals, longest * self._costs.drafted)

    def observe(self, outcomes: Many[Outcome]) -> None:
        """Learn from one decode step of all its rows."""
        self._steps += 1
        price = self._costs.plain(len(outcomes)) / len(outcomes)
        asked = [outcome for outcome in outcomes if outcome.asked]
        for outcome, cost in zip(asked, self._shares(asked, len(outcomes)), strict=True):
            self._row(outcome.sequence).add(outcome, cost / price)

    def close(self, sequence: Sequence) -> None:
        """Forget a row."""
        self._rows.pop(id(sequence), None)

    def _row(self, sequence: Sequence) -> RowPayoff:
        return self._rows.setdefault(id(sequence), RowPayoff())

    def _best_budget(self, row: RowPayoff, rows: int, most: int) -> int:
        """A look-up may say all it knows, since `fit` cuts it; a drafter is paid by the token."""
        if not self._costs.drafted:
            return most
        budgets = sorted({min(width - 1, most) for width in STEP_WIDTHS} - {0})
        return max(budgets, key=lambda budget: self._gain(row, rows, budget))

    def _gain(self, row: RowPayoff, rows: int, budget: int) -> float:
        """Return tokens per cost when every row of the step did as this one."""
        width = step_width(1 + budget)
        cost = self._costs.forward(rows, width) + budget * self._costs.drafted
        return expected_tokens(row.acceptance.survival(budget), width) / cost

    def _shares(self, asked: Many[Outcome], rows: int) -> list[float]:
        """Split what asking and widening cost among the rows that were asked.

        A row pays its part of each width up to the one its own drafts need (the airport game's
        Shapley value: Littlechild and Owen, 1973), so a short draft does not pay for a long one.
        """
        if not asked:
            return []
        longest = max(outcome.asked for outcome in asked)
        spent = self._costs.ahead + longest * self._costs.drafted
        shares = [spent / len(asked)] * len(asked)
        widths = [step_width(1 + outcome.verified) for outcome in asked]
        for narrow, wide in pairwise(STEP_WIDTHS):
            users = [index for index, width in enumerate(widths) if width >= wide]
            step = self._costs.forward(rows, wide) - self._costs.forward(rows, narrow)
            for index in users:
                shares[index] += step / len(users)
        return shares


def best_width(costs: StepCosts, survivals: Many[Many[float]], spent: float = 0.0) -> int:
    """Return the width with the most expected tokens per cost; the narrowest of equals.

    Args:
        survivals: for every row of the step, the chance that its draft is agreed with up to each
            position; empty for a row without one.
        spent: cost of the step that does not depend on the width.
    """
    widest = step_width(1 + max(map(len, survivals)))

    def gain(width: int) -> float:
        tokens = sum(expected_tokens(survival, width) for survival in survivals)
        return tokens / (costs.forward(len(survivals), width) + spent)

    return max((width for width in STEP_WIDTHS if width <= widest), key=gain)
