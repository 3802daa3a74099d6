"""Price fixed and adaptive draft budgets on recorded greedy texts: exact counts, no timings.

    uv run python benchmarks/budgets.py [PROMPTS]

Takes the texts of benchmarks/ngram.py and lets look-up drafting, the shipped budgets and the
shipped width rule walk them, alone and in batches of four and eight rows. Steps are priced by two
tables: the one of docs/decisions/ngram.md, and this machine's profile. Prints the tokens per cost
over those of plain steps, and in how many steps drafts were asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from ngram import BUDGET, COST, HOST, record

from engine.config import EngineConfig
from engine.costs import StepCosts, step_costs
from engine.draft.budget import DraftBudgets, Outcome
from engine.draft.ngram import RowIndex
from engine.models.load import load_model
from engine.profile import profile_steps
from engine.reasoning import ReplyText
from engine.request import Request
from engine.routing import route
from engine.runner import Runner
from engine.sequence import Sequence
from engine.shapes import step_width

Texts = list[tuple[list[int], list[int]]]

EIGHT_ROWS = {1: 1.2, 2: 1.7, 4: 2.5, 8: 4.5}
"""Steps of eight rows: 8, 16, 32 and 64 tokens (design figures of one core with OpenBLAS)."""


@dataclass(slots=True)
class Walk:
    """A recorded text being written again."""

    sequence: Sequence
    text: list[int]
    index: RowIndex

    @classmethod
    def of(cls, prompt: list[int], text: list[int]) -> Walk:
        """Begin behind the first token, which the prefill chooses."""
        request = Request(prompt_ids=tuple(prompt), max_tokens=len(text))
        config = EngineConfig(num_draft_tokens=BUDGET, draft_budgets="fixed")
        sequence = Sequence(request, route(config, request), 0, ReplyText(lambda _: b"", ()))
        sequence.ids.append(text[0])
        return cls(sequence, text, RowIndex())

    def draft(self, budget: int) -> list[int]:
        """Return what a look-up proposes."""
        self.index.extend(self.sequence.ids)
        return self.index.look_up(self.sequence.ids, budget)

    def take(self, draft: list[int]) -> int:
        """Verify a draft; returns how much of it was accepted."""
        done = self.sequence.num_emitted
        agreed = 0
        while agreed < len(draft) and draft[agreed] == self.text[done + agreed]:
            agreed += 1
        self.sequence.ids += self.text[done : done + agreed + 1]
        return agreed


class Fixed(DraftBudgets):
    """Budgets that do not adapt, behind the same two questions."""

    def budget(self, sequence: Sequence, rows: int, pending: int = 0) -> int:
        """Return all that may be drafted."""
        return min(BUDGET, sequence.remaining - 1)

    def fit(self, proposed: list[tuple[Sequence, int]]) -> int:
        """Return the width of the longest draft."""
        return step_width(1 + max(length for _, length in proposed))


class Plain(Fixed):
    """No drafts at all."""

    def budget(self, sequence: Sequence, rows: int, pending: int = 0) -> int:
        """Ask for nothing."""
        return 0


@dataclass(slots=True)
class Bill:
    """Tokens committed, what they cost, and steps."""

    tokens: int = 0
    cost: float = 0.0
    steps: int = 0
    asked: int = 0

    def step(self, walks: list[Walk], budgets: DraftBudgets, costs: StepCosts) -> None:
        """Take all rows one step further."""
        asked = [budgets.budget(walk.sequence, len(walks)) for walk in walks]
        drafts = [
            walk.draft(budget) if budget else [] for walk, budget in zip(walks, asked, strict=True)
        ]
        lengths = [(walk.sequence, len(d)) for walk, d in zip(walks, drafts, strict=True)]
        width = budgets.fit(lengths)
        outcomes = []
        for walk, budget, draft in zip(walks, asked, drafts, strict=True):
            kept = draft[: width - 1]
            outcomes.append(Outcome(walk.sequence, budget, len(kept), walk.take(kept)))
        budgets.observe(outcomes)
        self.tokens += sum(1 + outcome.accepted for outcome in outcomes)
        self.cost += costs.forward(len(walks), width) if any(asked) else costs.plain(len(walks))
        self.steps += 1
        self.asked += any(asked)


def walk_all(texts: Texts, rows: int, costs: StepCosts, kind: Callable[..., DraftBudgets]) -> Bill:
    """Serve the texts, `rows` at a time, a new one as soon as one ends."""
    waiting = [Walk.of(*pair) for pair in texts if len(pair[1]) > 1]
    bill, budgets, live = Bill(), kind(costs), list[Walk]()
    while waiting or live:
        while waiting and len(live) < rows:
            live.append(waiting.pop(0))
        bill.step(live, budgets, costs)
        for walk in live:
            if walk.sequence.remaining < 1:
                budgets.close(walk.sequence)
        live = [walk for walk in live if walk.sequence.remaining > 0]
    return bill


def noted_costs() -> StepCosts:
    """Return the prices of docs/decisions/ngram.md, where drafting is 6 % host work."""
    measured = {(1, width): cost + HOST for width, cost in COST.items()}
    return step_costs(measured | {(8, w): c + HOST for w, c in EIGHT_ROWS.items()}, ahead=HOST)


def main() -> None:
    """Print one line for each price table, batch and workload."""
    texts = record(print, int(sys.argv[1]) if len(sys.argv) > 1 else 8)
    profile = profile_steps(Runner(load_model("smollm2-135m")), 8, step_width(1 + BUDGET))
    tables = {"noted": noted_costs(), "profiled": profile}
    for row, line in zip(profile.rows, profile.forwards, strict=True):
        print(f"profile, {row} rows, ms: {', '.join(f'{1e3 * cost:.0f}' for cost in line)}")
    print(f"launched ahead saves {1e3 * profile.ahead:.1f} ms")
    for table, costs in tables.items():
        for rows in (1, 4, 8):
            for name, pairs in texts.items():
                bills = [
                    walk_all(pairs, rows, costs, kind) for kind in (Plain, Fixed, DraftBudgets)
                ]
                plain, *others = [bill.tokens / bill.cost for bill in bills]
                gains = ", ".join(f"{rate / plain:.2f}" for rate in others)
                share = bills[-1].asked / bills[-1].steps
                print(
                    f"{table:<9} {rows} rows {name:<13} fixed, adaptive {gains}; asked {share:.0%}"
                )


if __name__ == "__main__":
    main()
