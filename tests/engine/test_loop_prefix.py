"""With the prefix cache on, every row of every lane emits the ids it emits with the cache off."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import replace
from pathlib import Path

import pytest

from engine import arrays
from engine.config import EngineConfig
from engine.draft.registry import build_drafter
from engine.draft.source import DraftSource
from engine.loop import Engine
from engine.request import (
    Completion,
    Constraint,
    ConstraintKind,
    FinishReason,
    Request,
    SamplingParams,
)
from engine.sequence import Sequence
from engine.testing import ScriptedDrafter, tiny_model, write_adapter
from tests.engine.cache.families import family

PLENTY = 1 << 30
COLUMNS = EngineConfig(prefill_chunk=512, interleaved_prefill=512)
"""Which prompts are computed side by side, and so cannot reuse one another, hinges on these."""
LANES = {
    "serial": COLUMNS,
    "serial, tiny chunks": replace(COLUMNS, prefill_chunk=50),
    "batch": replace(COLUMNS, max_rows=4),
    "serial+spec": replace(COLUMNS, num_draft_tokens=3, draft_budgets="fixed"),
    "batch+spec": replace(
        COLUMNS, max_rows=4, num_draft_tokens=3, draft_budgets="fixed", spec_batching="batched"
    ),
    "batch+spec two_model": replace(
        COLUMNS,
        max_rows=4,
        num_draft_tokens=3,
        draft_budgets="fixed",
        spec_batching="batched",
        drafter="two_model",
    ),
}
CHOICE = Constraint(kind=ConstraintKind.REGEX, value="[a-c]{3,60}x?")


def with_cache(config: EngineConfig, num_bytes: int = PLENTY) -> EngineConfig:
    """The same lane with a prefix cache."""
    return replace(config, prefix_cache_bytes=num_bytes)


def engine_of(config: EngineConfig, drafter: DraftSource | None = None) -> Engine:
    """An engine on the tiny model, with the lane's own drafter unless one is given."""
    model = tiny_model()
    return Engine(model, config, drafter or build_drafter(config, model))


def text(length: int, seed: int = 0) -> tuple[int, ...]:
    """Printable bytes with repetitions; different seeds differ from the first token on."""
    return tuple(33 + (7 * i * i + length + 11 * seed) % 60 for i in range(length))


def request(ids: Many[int], seed: int = 0, **settings: object) -> Request:
    """A row of 16 tokens that ends early only when told to."""
    values: dict[str, object] = {"max_tokens": 16, "ignore_eos": True} | settings
    sampling = SamplingParams(temperature=0.8 if seed else 0.0, seed=seed)
    return Request(prompt_ids=tuple(ids), sampling=sampling, **values)


def outcomes(completions: Many[Completion]) -> list[object]:
    """What must not depend on the cache."""
    return [(c.token_ids, c.text, c.finish_reason, c.conformance) for c in completions]


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("shared", [0, 63, 64, 65, 128, 129])
def test_prompts_that_begin_alike_share_whole_blocks_and_keep_their_ids(
    lane: str, shared: int
) -> None:
    trunk = text(shared)
    requests = [request((*trunk, *text(70 + i, seed=i)), seed=i // 2) for i in range(1, 5)]
    expected = engine_of(LANES[lane]).generate(requests)
    engine = engine_of(with_cache(LANES[lane]))
    completions = engine.generate(requests[:1]) + engine.generate(requests[1:])
    assert outcomes(completions) == outcomes(expected)
    reused = shared // 64 * 64
    assert [c.cached_tokens for c in completions] == [0, reused, reused, reused]
    stats = engine.stats().prefix
    assert (stats.hits, stats.misses) == ((3, 1) if reused else (0, 4))
    assert stats.cached_tokens == 3 * reused


@pytest.mark.parametrize("lane", ["serial, tiny chunks", "batch+spec"])
@pytest.mark.parametrize("length", [1, 63, 64, 65, 127, 128, 129, 600])
def test_a_prompt_seen_before_computes_at_least_its_last_token(lane: str, length: int) -> None:
    seen = request(text(length))
    expected = engine_of(LANES[lane]).generate([seen])
    engine = engine_of(with_cache(LANES[lane]))
    completions = [engine.generate([seen])[0] for _ in range(2)]
    assert outcomes(completions) == outcomes(expected * 2)
    assert [c.cached_tokens for c in completions] == [0, (length - 1) // 64 * 64]


@pytest.mark.parametrize("lane", LANES)
def test_equal_prompts_too_long_to_share_a_chunk_are_computed_once(lane: str) -> None:
    requests = [request(text(600), seed=seed) for seed in range(4)]
    expected = engine_of(LANES[lane]).generate(requests)
    completions = engine_of(with_cache(LANES[lane])).generate(requests)
    assert outcomes(completions) == outcomes(expected)
    assert [c.cached_tokens for c in completions] == [0, 576, 576, 576]


def test_equal_prompts_computed_side_by_side_are_kept_once() -> None:
    requests = [request(text(130), seed=seed, max_tokens=2) for seed in range(2)]
    expected = engine_of(LANES["batch"]).generate(requests)
    engine = engine_of(with_cache(LANES["batch"]))
    completions = engine.generate(requests)
    assert outcomes(completions) == outcomes(expected)
    assert [c.cached_tokens for c in completions] == [0, 0]
    assert engine.stats().prefix.num_blocks == 2


@pytest.mark.parametrize("lane", ["batch", "batch+spec", "batch+spec two_model"])
def test_copies_of_a_prompt_ask_once_and_share_the_rest(lane: str) -> None:
    engine, plain = engine_of(with_cache(LANES[lane])), engine_of(LANES[lane])
    for found in (0, 192):
        expected, completions = (
            [each.completion(row) for row in finished(each)] for each in (plain, engine)
        )
        assert outcomes(completions) == outcomes(expected)
        assert [c.cached_tokens for c in completions] == [found, 199, 199]
    assert (engine.stats().prefix.hits, engine.stats().prefix.misses) == (1, 1)


def finished(engine: Engine) -> list[str]:
    """Three copies of a prompt, decoded to the end."""
    ids = engine.submit_copies(request(text(200), seed=5), 3)
    while engine.has_work:
        engine.step()
    return ids


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("constraint", [None, CHOICE], ids=["free", "grammar"])
def test_a_second_turn_reuses_the_first_turns_prompt_and_reply(
    lane: str, constraint: Constraint | None
) -> None:
    settings: dict[str, object] = {"constraint": constraint, "ignore_eos": constraint is None}
    first = request(text(100), max_tokens=40, **settings)
    plain, engine = engine_of(LANES[lane]), engine_of(with_cache(LANES[lane]))
    reply = engine.generate([first])[0]
    assert outcomes([reply]) == outcomes(plain.generate([first]))
    second = request((*first.prompt_ids, *reply.token_ids, *text(30)), **settings)
    again = engine.generate([second])[0]
    assert outcomes([again]) == outcomes(plain.generate([second]))
    in_slot = 100 + len(reply.token_ids) - 1
    assert again.cached_tokens == in_slot // 64 * 64


def scripted(ids: Many[int], junk: int) -> ScriptedDrafter:
    """A drafter that knows what a row emits, spoilt at every third position by `junk`."""

    def propose(sequence: Sequence) -> list[int]:
        ahead = range(sequence.num_emitted, len(ids))
        return [(ids[i] + (junk if i % 3 == 2 else 0)) % 256 for i in ahead]

    return ScriptedDrafter(propose)


@pytest.mark.parametrize("junk", [0, 1], ids=["right", "wrong now and then"])
@pytest.mark.parametrize("max_tokens", [27, 28, 29, 30])
def test_rejected_drafts_never_enter_a_block(junk: int, max_tokens: int) -> None:
    first = request(text(100), max_tokens=max_tokens)
    plain = engine_of(EngineConfig())
    emitted = plain.generate([first])[0].token_ids
    config = with_cache(EngineConfig(num_draft_tokens=7, draft_budgets="fixed"))
    engine = engine_of(config, scripted(emitted, junk))
    assert engine.generate([first])[0].token_ids == emitted
    second = request((*first.prompt_ids, *emitted, *text(9)), num_draft_tokens=0)
    completion = engine.generate([second])[0]
    assert completion.token_ids == plain.generate([second])[0].token_ids
    assert completion.cached_tokens == (100 + max_tokens - 1) // 64 * 64


def test_a_row_that_ends_inside_a_burst_leaves_only_what_it_emitted() -> None:
    first = request(text(100), max_tokens=60)
    plain = engine_of(EngineConfig())
    reply = plain.generate([first])[0]
    stopped = replace(first, stop=(reply.text[25:31],))
    engine = engine_of(
        with_cache(EngineConfig(num_draft_tokens=15, draft_budgets="fixed")),
        scripted(reply.token_ids, junk=0),
    )
    cut = engine.generate([stopped])[0]
    assert cut.finish_reason is FinishReason.STOP
    second = request((*first.prompt_ids, *reply.token_ids, 65), num_draft_tokens=0)
    completion = engine.generate([second])[0]
    assert completion.token_ids == plain.generate([second])[0].token_ids
    assert completion.cached_tokens == (100 + len(cut.token_ids)) // 64 * 64


@pytest.mark.parametrize("lane", LANES)
def test_rows_of_different_salts_never_share(lane: str) -> None:
    engine = engine_of(with_cache(LANES[lane]))
    rows = [request(text(200), cache_salt=salt) for salt in ("", "a", "b", "a")]
    completions = engine.generate(rows)
    assert [c.cached_tokens for c in completions] == [0, 0, 0, 192]
    assert len(set(outcomes(completions))) == 1


BLOCK_BYTES = 64 * 2 * 16 * 2 * 2 * 4
"""64 tokens of the tiny model: 2 heads of 16, keys and values, 2 layers, float32."""


@pytest.mark.parametrize("budget", [1, BLOCK_BYTES, 3 * BLOCK_BYTES + 5], ids=str)
@pytest.mark.parametrize("lane", ["serial", "batch+spec"])
def test_a_small_budget_holds_and_changes_no_ids(lane: str, budget: int) -> None:
    requests = [request(text(70 + 40 * i, seed=i % 3)) for i in range(5)] * 2
    expected = engine_of(LANES[lane]).generate(requests)
    engine = engine_of(with_cache(LANES[lane], budget))
    ids = [engine.submit(each) for each in requests]
    while engine.has_work:
        engine.step()
        stats = engine.stats().prefix
        assert stats.num_bytes <= budget
        assert stats.num_bytes == stats.num_blocks * BLOCK_BYTES
    assert outcomes([engine.completion(each) for each in ids]) == outcomes(expected)
    assert (stats.num_blocks > 0) == (budget >= BLOCK_BYTES)


def test_slots_reused_by_others_leave_blocks_as_they_were() -> None:
    engine = engine_of(with_cache(EngineConfig(max_rows=2)))
    kept = request(text(300))
    first = engine.generate([kept])[0]
    engine.generate([request(text(900 + i, seed=1), max_tokens=50) for i in range(4)])
    again = engine.generate([kept])[0]
    assert again.token_ids == first.token_ids
    assert again.cached_tokens == 256


def test_a_cancelled_row_leaves_no_reply_and_nothing_matched() -> None:
    engine = engine_of(with_cache(EngineConfig(prefill_chunk=64)))
    engine.generate([request(text(130))])
    before = engine.stats().prefix
    for steps in range(1, 5):
        doomed = engine.submit(request((*text(130), *text(200, seed=2))))
        for _ in range(steps):
            engine.step()
        engine.cancel(doomed)
    assert engine.stats().prefix.num_blocks in (before.num_blocks, before.num_blocks + 3)


def test_storing_and_loading_wait_for_nothing() -> None:
    engine = engine_of(with_cache(EngineConfig(max_rows=4)))
    before = arrays.SYNCS.count
    engine.generate([request(text(200), max_tokens=9) for _ in range(6)])
    assert arrays.SYNCS.count - before == engine.stats().steps


def test_a_model_with_recurrent_layers_goes_without_and_says_why() -> None:
    engine = Engine(family("mamba2"), with_cache(EngineConfig()))
    assert "recurrent layers" in engine.stats().prefix.reason
    assert Engine(tiny_model(), with_cache(EngineConfig())).stats().prefix.reason == ""
    assert "prefix_cache_bytes is 0" in Engine(tiny_model(), EngineConfig()).stats().prefix.reason


def test_a_prompt_of_another_adapter_is_not_shared(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "tone", tiny_model())
    engine = engine_of(with_cache(EngineConfig(adapters=(str(folder),))))
    plain = request(text(130))
    toned = replace(plain, adapter="tone")
    completions = engine.generate([plain, toned, plain, toned])
    assert [completion.cached_tokens for completion in completions] == [0, 0, 128, 128]
    assert completions[0].token_ids == completions[2].token_ids
    assert completions[1].token_ids == completions[3].token_ids
