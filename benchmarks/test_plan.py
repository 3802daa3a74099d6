"""What the host's decisions cost a step: `pytest benchmarks/test_plan.py --benchmark-enable`."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from engine.config import EngineConfig
from engine.kv_budget import KvBudget, KvCosts
from engine.reasoning import ReplyText
from engine.request import Request
from engine.routing import route
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.testing import tiny_model
from engine.verify import accept_match

ROWS = [1, 8, 64]
NUM_PROMPT = 500


def decoding(num_rows: int, num_draft_tokens: int) -> Scheduler:
    """A scheduler whose rows are all behind their prompts."""
    config = EngineConfig(
        max_rows=num_rows,
        num_draft_tokens=num_draft_tokens,
        draft_budgets="fixed",
        spec_batching="batched",
    )
    scheduler = Scheduler(config, KvBudget(KvCosts(per_token=1)))
    for _ in range(num_rows):
        request = Request(prompt_ids=tuple(range(100)) * (NUM_PROMPT // 100))
        text = ReplyText(tiny_model().tokenizer.token_bytes)
        scheduler.add(Sequence(request, route(config, request), seed=0, text=text))
    for sequence in scheduler.admit().joined:
        sequence.num_cached = sequence.num_prompt
        sequence.ids.append(0)
    return scheduler


@pytest.mark.parametrize("num_rows", ROWS)
@pytest.mark.parametrize("num_drafts", [0, 3])
def test_plan(num_drafts: int, num_rows: int, benchmark: BenchmarkFixture) -> None:
    """Admission, room and plan of one decode step."""
    scheduler = decoding(num_rows, num_drafts)

    def plan() -> object:
        scheduler.admit()
        scheduler.room(scheduler.most)
        return scheduler.plan()

    assert plan() is not None
    benchmark(plan)


@pytest.mark.parametrize("num_rows", ROWS)
def test_plan_ahead(num_rows: int, benchmark: BenchmarkFixture) -> None:
    """The plan of a step whose tokens are still on the device."""
    scheduler = decoding(num_rows, 0)
    plan = scheduler.plan()
    assert plan is not None
    assert scheduler.plan_ahead(plan) is not None
    benchmark(scheduler.plan_ahead, plan)


@pytest.mark.parametrize("num_rows", ROWS)
@pytest.mark.parametrize("num_drafts", [1, 3, 7])
def test_accept_walk(num_drafts: int, num_rows: int, benchmark: BenchmarkFixture) -> None:
    """Verdicts on the drafts of one step, all of them right: the longest walk."""
    draft = tuple(range(num_drafts))
    chosen = [[*draft, num_drafts] for _ in range(num_rows)]
    benchmark(lambda: [accept_match(row, draft) for row in chosen])
