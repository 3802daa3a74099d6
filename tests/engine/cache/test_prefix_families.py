"""Every kind of layer that a prefix can be cut from gives and takes blocks bit for bit."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import pytest

from engine.cache.prefix import PrefixCache, PrefixSalt
from engine.config import EngineConfig
from engine.draft.registry import build_drafter
from engine.loop import Engine
from engine.plan import RowRange
from engine.request import Completion, Request
from engine.runner import Runner
from tests.engine.cache.families import ATTENTION, WINDOW, family

SALT = PrefixSalt()
BLOCK = 64
QUANTISABLE = ("llama", "gemma3_text", "ministral3")
KINDS = [
    *((name, None) for name in ATTENTION),
    *((name, bits) for name in QUANTISABLE for bits in (8, 4)),
]
LANES = {
    "serial": EngineConfig(prefill_chunk=BLOCK),
    "batch": EngineConfig(prefill_chunk=BLOCK, max_rows=3),
    "batch+spec": EngineConfig(
        prefill_chunk=BLOCK,
        max_rows=3,
        num_draft_tokens=3,
        draft_budgets="fixed",
        spec_batching="batched",
    ),
}
"""Chunks of a block: a forward over the rest has the shape it has without the cache."""


def text(length: int, seed: int = 0) -> tuple[int, ...]:
    """Ids far past the window; different seeds differ from the first on."""
    assert length > 4 * WINDOW
    return tuple(33 + (7 * i * i + i // 9 + 11 * seed) % 60 for i in range(length))


@pytest.mark.parametrize(("name", "bits"), KINDS)
def test_a_loaded_slot_computes_the_bits_of_the_slot_that_was_stored(
    name: str, bits: int | None
) -> None:
    runner = Runner(family(name), 1, bits)
    runner.cache.resize(2, 1024)
    num_tokens = 10 * BLOCK
    ids, after = text(num_tokens), mx.array([text(40, seed=1)])
    runner.prefill(mx.array([ids]), RowRange(0, (0,), (num_tokens,), (0,)))
    cache = PrefixCache(1 << 30)
    cache.store(SALT, ids, runner.cache, 0, num_tokens)
    prefix = cache.match(SALT, (*ids, 0))
    assert (prefix.num_tokens, len(prefix.pieces)) == (num_tokens, 2)
    cache.load(prefix, runner.cache, 1)
    first, second = (
        runner.forward(after, RowRange(slot, (num_tokens,), (40,), (0,))) for slot in range(2)
    )
    assert mx.array_equal(first, second)
    assert cache.stats().num_bytes == num_tokens * runner.cache.bytes_per_token


def generate(
    name: str, config: EngineConfig, rounds: list[list[Request]]
) -> tuple[list[tuple[int, ...]], list[Completion]]:
    """Ids and records of requests that arrive in rounds."""
    engine = Engine(family(name), config, build_drafter(config, family(name)))
    completions = [each for requests in rounds for each in engine.generate(requests)]
    return [each.token_ids for each in completions], completions


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize(("name", "bits"), KINDS)
def test_ids_are_those_of_the_same_bits_without_the_cache(
    name: str, bits: int | None, lane: str
) -> None:
    trunk = text(2 * BLOCK + 5)
    first, *others = (
        Request(prompt_ids=(*trunk, *text(40 + seed, seed)), max_tokens=24, ignore_eos=True)
        for seed in range(1, 5)
    )
    rounds = [[first], others, [first]]
    off = replace(LANES[lane], kv_bits=bits)
    expected, _ = generate(name, off, rounds)
    ids, completions = generate(name, replace(off, prefix_cache_bytes=1 << 30), rounds)
    assert ids == expected
    assert [each.cached_tokens for each in completions] == [0, 128, 128, 128, 128]
