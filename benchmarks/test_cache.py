"""What the cache costs a step: `pytest benchmarks/test_cache.py --benchmark-enable`."""

from __future__ import annotations

from itertools import count

import mlx.core as mx
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from engine.cache.layout import build_stores
from engine.cache.prefix import PrefixCache, PrefixSalt
from engine.cache.slots import SlotCache
from engine.testing import tiny_model

SALT = PrefixSalt()
ROWS, LENGTH = 8, 1024


@pytest.fixture(scope="module")
def storage() -> SlotCache:
    """Slots of the tiny model's shape, filled by one forward of all rows."""
    model = tiny_model()
    cache = SlotCache(build_stores(model.name, model.model))
    cache.resize(ROWS, LENGTH)
    ids = mx.array([[33 + i % 90 for i in range(LENGTH)]] * ROWS)
    mx.eval(model.model(ids, cache=cache.views(0, (0,) * ROWS, (LENGTH,) * ROWS, LENGTH)))
    return cache


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("spread", [0, 7], ids=["uniform", "ragged"])
@pytest.mark.parametrize("rows", [ROWS, ROWS // 2], ids=["all slots", "half of them"])
def test_slot_write(
    storage: SlotCache, rows: int, spread: int, width: int, benchmark: BenchmarkFixture
) -> None:
    """The writes of one step over some rows, in every layer, and what attention then reads."""
    starts = tuple(LENGTH // 2 + spread * row for row in range(rows))
    heads, _, dim = storage.read(0, 0, 1)[0][0].shape
    new = mx.random.normal((rows, heads, width, dim))
    mx.eval(new)

    def write() -> None:
        views = storage.views(0, starts, (width,) * rows, width)
        mx.eval([view.update_and_fetch(new, new) for view in views])

    benchmark(write)


@pytest.mark.parametrize("num_tokens", [64, 960])
def test_prefix_store(storage: SlotCache, num_tokens: int, benchmark: BenchmarkFixture) -> None:
    """Blocks that are not held yet; the budget is full, so older ones are evicted."""
    cache = PrefixCache(budget_bytes=1 << 21)
    prompts = ([number] * num_tokens for number in count())

    def store() -> None:
        cache.store(SALT, next(prompts), storage, 0, num_tokens)
        mx.synchronize()

    benchmark(store)


@pytest.mark.parametrize("num_tokens", [64, 960])
def test_prefix_match_and_load(
    storage: SlotCache, num_tokens: int, benchmark: BenchmarkFixture
) -> None:
    """A prompt found entirely, written to another slot."""
    cache = PrefixCache(budget_bytes=1 << 30)
    prompt = list(range(num_tokens + 1))
    cache.store(SALT, prompt, storage, 0, num_tokens)

    def load() -> None:
        cache.load(cache.match(SALT, prompt), storage, 1)
        mx.eval(storage.read(1, num_tokens - 1, num_tokens))

    benchmark(load)
