"""A cancelled row gives back all it held, whatever it was doing, and however often that happens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from engine.config import EngineConfig
from engine.draft.registry import build_drafter
from engine.loop import Engine
from engine.request import FinishReason, Request
from engine.sequence import Sequence
from engine.testing import tiny_model
from harness.lane_audit.play import leftovers

TIMES = 12
BATCH = EngineConfig(max_rows=2, prefill_chunk=16, interleaved_prefill=16)
LANES = {
    "batch": BATCH,
    "batch, not pipelined": replace(BATCH, pipelined=False),
    "batch+ngram": replace(BATCH, num_draft_tokens=3, draft_budgets="fixed"),
    "batch+two_model": replace(
        BATCH, num_draft_tokens=3, draft_budgets="fixed", drafter="two_model"
    ),
}


def request(length: int, max_tokens: int) -> Request:
    """A row that ends by its budget alone."""
    ids = tuple(33 + (7 * i * i + length) % 60 for i in range(length))
    return Request(prompt_ids=ids, max_tokens=max_tokens, ignore_eos=True)


SURVIVOR = request(90, 12)
VICTIM = request(40, 6)
PHASES: dict[str, Callable[[Sequence], bool]] = {
    "queued": lambda row: True,
    "between chunks": lambda row: 0 < row.num_cached < row.num_prompt,
    "prompt done": lambda row: not row.is_prefilling,
    "decoding": lambda row: row.num_emitted >= 2,
    "before its last token": lambda row: row.num_emitted >= 3,
}


def engine_of(lane: str) -> Engine:
    config = LANES[lane]
    return Engine(tiny_model(), config, build_drafter(config, tiny_model()))


def finish(engine: Engine) -> None:
    """Run all rows to their end."""
    while engine.has_work:
        engine.step()


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("lane", LANES)
def test_counters_are_the_same_after_every_cancelled_row(lane: str, phase: str) -> None:
    engine = engine_of(lane)
    expected = Engine(tiny_model(), EngineConfig()).generate([SURVIVOR])[0].token_ids
    counters = set()
    for _ in range(TIMES):
        kept = engine.submit(SURVIVOR)
        filler = engine.submit(request(9, 3)) if phase == "queued" else ""
        doomed = engine.submit(VICTIM)
        row = engine._live[doomed]
        while not PHASES[phase](row):
            engine.step()
        assert engine.cancel(doomed)
        assert not engine.cancel(doomed)
        done = engine.completion(doomed)
        assert (done.finish_reason, len(done.token_ids)) == (
            FinishReason.CANCELLED,
            row.num_emitted,
        )
        finish(engine)
        assert engine.completion(kept).token_ids == expected
        if filler:
            assert engine.completion(filler).finish_reason is FinishReason.LENGTH
        assert not leftovers(engine, engine._proposer._drafter)
        stats = engine.stats()
        counters.add((stats.active, stats.pending, stats.projected_bytes, stats.kv_bytes))
    assert len(counters) == 1


@pytest.mark.parametrize("lane", LANES)
def test_cancelling_what_is_over_or_was_never_there_changes_nothing(lane: str) -> None:
    engine = engine_of(lane)
    over = engine.submit(VICTIM)
    finish(engine)
    before = engine.stats()
    for request_id in (over, "nobody", ""):
        assert not engine.cancel(request_id)
    assert engine.stats() == before
    assert engine.completion(over).finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("phase", [name for name in PHASES if name != "queued"])
@pytest.mark.parametrize("lane", LANES)
def test_the_row_that_waits_for_the_slot_is_let_in_by_the_next_step(lane: str, phase: str) -> None:
    engine = engine_of(lane)
    engine.submit(replace(SURVIVOR, max_tokens=200))
    doomed, waiting = engine.submit(VICTIM), engine.submit(VICTIM)
    row, next_row = engine._live[doomed], engine._live[waiting]
    while not PHASES[phase](row):
        engine.step()
    assert next_row not in engine._scheduler.active
    engine.cancel(doomed)
    engine.step()
    if engine.last_step is not None and next_row not in engine._scheduler.active:
        engine.step()  # a step was launched already when the slot was given up
    assert next_row in engine._scheduler.active
    finish(engine)
    assert engine.completion(waiting).finish_reason is FinishReason.LENGTH
