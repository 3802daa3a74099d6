"""The KV budget: any mix of requests stays under it and all finish; what never fits is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.draft.registry import build_drafter
from engine.errors import RequestError
from engine.loop import Engine
from engine.oracle import Oracle
from engine.request import FinishReason, Request
from engine.testing import tiny_model

GB_PER_POSITION = Engine(tiny_model(), EngineConfig())._kv_budget.costs.per_token / 1e9


def engine_of(positions: int, **values: object) -> Engine:
    """An engine whose budget holds that many positions."""
    config = EngineConfig(kv_budget_gb=positions * GB_PER_POSITION, **values)  # type: ignore[arg-type]  # values of a test
    return Engine(tiny_model(), config, build_drafter(config))


mixes = st.lists(st.tuples(st.integers(1, 500), st.integers(1, 20)), min_size=1, max_size=8)


@settings(max_examples=15)
@given(mix=mixes, positions=st.sampled_from([768, 1500, 4096]), drafts=st.sampled_from([0, 3]))
def test_any_mix_of_requests_stays_under_the_budget_and_finishes(
    mix: list[tuple[int, int]], positions: int, drafts: int
) -> None:
    engine = engine_of(
        positions,
        max_rows=4,
        num_draft_tokens=drafts,
        draft_budgets="fixed",
        spec_batching="batched",
    )
    budget = engine.stats().budget_bytes
    assert budget is not None
    ids = [
        engine.submit(Request(prompt_ids=(65,) * length, max_tokens=max_tokens, ignore_eos=True))
        for length, max_tokens in mix
    ]
    while engine.has_work:
        engine.step()
        stats = engine.stats()
        assert stats.projected_bytes <= budget
        assert stats.kv_bytes <= budget
    for request_id, (_, max_tokens) in zip(ids, mix, strict=True):
        completion = engine.completion(request_id)
        assert completion.finish_reason is FinishReason.LENGTH
        assert len(completion.token_ids) == max_tokens


def test_a_request_too_large_alone_is_refused_with_the_figures_and_leaves_nothing() -> None:
    engine = engine_of(512)
    with pytest.raises(RequestError, match=r"may need 1024 positions .* the KV budget is"):
        engine.submit(Request(prompt_ids=(65,) * 800, max_tokens=10))
    assert not engine.has_work
    assert engine.stats().submitted == 0


def test_rows_that_queue_for_room_get_the_tokens_they_get_alone() -> None:
    engine = engine_of(512, max_rows=4)
    requests = [
        Request(prompt_ids=(60 + index,) * (20 + 90 * index), max_tokens=8, ignore_eos=True)
        for index in range(5)
    ]
    oracle = Oracle(tiny_model())
    for request, completion in zip(requests, engine.generate(requests), strict=True):
        assert list(completion.token_ids) == oracle.generate(request)


def test_the_cache_shrinks_after_a_long_row_when_others_need_the_room() -> None:
    engine = engine_of(2048, max_rows=8, prefill_chunk=512)
    engine.generate([Request(prompt_ids=(65,) * 1900, max_tokens=4, ignore_eos=True)])
    long = engine.stats().kv_bytes
    short = [Request(prompt_ids=(65,) * 9, max_tokens=40, ignore_eos=True) for _ in range(8)]
    for request in short:
        engine.submit(request)
    while engine.stats().active < 8:
        engine.step()
    assert engine.stats().kv_bytes <= long
    assert engine.stats().kv_bytes <= (engine.stats().budget_bytes or 0)


def test_stats_say_what_is_live_and_what_it_may_cost() -> None:
    engine = engine_of(4096, max_rows=2)
    for _ in range(3):
        engine.submit(Request(prompt_ids=(65,) * 9, max_tokens=40, ignore_eos=True))
    engine.step()
    stats = engine.stats()
    assert (stats.submitted, stats.active, stats.pending) == (3, 2, 1)
    assert stats.lanes == {"batch": 2}
    assert stats.projected_bytes == round(2 * 256 * GB_PER_POSITION * 1e9)
    assert 0 <= stats.padding < 1


@pytest.mark.parametrize("max_rows", [1, 3])
def test_a_reply_outgrows_its_cache_without_a_break(max_rows: int) -> None:
    requests = [
        Request(prompt_ids=(60 + index,) * 9, max_tokens=600, ignore_eos=True)
        for index in range(max_rows)
    ]
    engines = [
        Engine(tiny_model(), EngineConfig(max_rows=max_rows, pipelined=ahead))
        for ahead in (False, True)
    ]
    apart, ahead = (
        [completion.token_ids for completion in engine.generate(requests)] for engine in engines
    )
    assert ahead == apart
