"""A prefix served is the one asked for, in bits; the budget holds; nothing changes a block."""

from __future__ import annotations

import gc
import hashlib

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from engine.arrays import launch
from engine.backend import backend_info
from engine.cache.prefix import RUN_BLOCKS, CachedPrefix, PrefixCache, PrefixSalt
from engine.cache.slots import SlotCache
from engine.cache.stretch import SlotArrays, num_bytes

NO_SALT = PrefixSalt()
BLOCK = 2
HEADS, DIM, LAYERS = 2, 3, 2
BLOCK_BYTES = BLOCK * HEADS * DIM * LAYERS * 2 * 4


def content(salt: PrefixSalt, ids: tuple[int, ...]) -> np.ndarray:
    """What a slot holds after these ids: at each position, a digest of all up to it."""
    digests = [
        hashlib.sha256(repr((salt, ids[: end + 1])).encode()).digest() for end in range(len(ids))
    ]
    numbers = np.array([int.from_bytes(digest[:3]) for digest in digests], dtype=np.float32)
    return np.broadcast_to(numbers[None, None, :, None], (1, HEADS, len(ids), DIM))


def fill(storage: SlotCache, slot: int, values: np.ndarray) -> None:
    """Write one array to all layers of a slot; values are the negated keys."""
    array = mx.array(values)
    storage.write(slot, 0, ((array, -array),) * LAYERS)


def held(storage: SlotCache, slot: int, num_tokens: int) -> list[np.ndarray]:
    """What a slot holds, keys and values of every layer."""
    layers = storage.read(slot, 0, num_tokens)
    return [np.array(array) for layer in layers for array in layer]


def stored(cache: PrefixCache, ids: tuple[int, ...], salt: PrefixSalt = NO_SALT) -> None:
    """Store a row of these ids."""
    storage = SlotCache(LAYERS)
    fill(storage, 0, content(salt, ids))
    cache.store(salt, ids, storage, 0, len(ids))


def num_matched(cache: PrefixCache, ids: tuple[int, ...], salt: PrefixSalt = NO_SALT) -> int:
    """How many tokens of a row are found, its last one included."""
    return cache.match(salt, (*ids, 0)).num_tokens


salts = st.sampled_from([NO_SALT, PrefixSalt(text="a"), PrefixSalt(adapter="a")])
rows = st.lists(st.integers(0, 1), min_size=1, max_size=2 * BLOCK * RUN_BLOCKS + 3).map(tuple)


class PrefixMachine(RuleBasedStateMachine):
    """A cache beside the plain set of all prefixes ever stored."""

    held_prefixes = Bundle("held_prefixes")
    budget_blocks = 12
    budget_bytes = budget_blocks * BLOCK_BYTES + BLOCK_BYTES // 2

    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache(self.budget_bytes, BLOCK)
        self.storage = SlotCache(LAYERS)
        self.seen: set[tuple[PrefixSalt, tuple[int, ...]]] = set()
        self.served = 0

    @rule(salt=salts, ids=rows, slot=st.integers(0, 2), data=st.data())
    def store(self, salt: PrefixSalt, ids: tuple[int, ...], slot: int, data: st.DataObject) -> None:
        fill(self.storage, slot, content(salt, ids))
        num_cached = data.draw(st.integers(0, len(ids)))
        self.cache.store(salt, ids, self.storage, slot, num_cached)
        whole = num_cached // BLOCK
        self.seen |= {(salt, ids[: end * BLOCK]) for end in range(1, whole + 1)}
        found = self.cache.match(salt, (*ids[:num_cached], 0))
        chain_bytes = sum(num_bytes(piece.arrays) for piece in found.pieces)
        assert found.num_tokens == whole * BLOCK or chain_bytes + BLOCK_BYTES > self.budget_bytes

    @rule(target=held_prefixes, salt=salts, ids=rows)
    def match(
        self, salt: PrefixSalt, ids: tuple[int, ...]
    ) -> tuple[CachedPrefix, PrefixSalt, tuple[int, ...]]:
        prefix = self.cache.match(salt, ids)
        assert prefix.num_tokens % BLOCK == 0
        assert prefix.num_tokens < len(ids)
        if prefix.num_tokens:
            assert (salt, ids[: prefix.num_tokens]) in self.seen
        if len(self.seen) <= self.budget_blocks:
            known = (end for end in range(len(ids)) if (salt, ids[:end]) in self.seen)
            assert prefix.num_tokens == max(known, default=0)
        return prefix, salt, ids

    @rule(match=held_prefixes, slot=st.integers(0, 2))
    def load(self, match: tuple[CachedPrefix, PrefixSalt, tuple[int, ...]], slot: int) -> None:
        prefix, salt, ids = match
        self.cache.load(prefix, self.storage, slot)
        self.served += prefix.num_tokens
        if prefix.num_tokens:
            expected = content(salt, ids[: prefix.num_tokens])
            for index, array in enumerate(held(self.storage, slot, prefix.num_tokens)):
                np.testing.assert_array_equal(array, expected if index % 2 == 0 else -expected)

    @rule(slot=st.integers(0, 2), length=st.sampled_from([5, 40, 300]))
    def overwrite(self, slot: int, length: int) -> None:
        fill(self.storage, slot, np.full((1, HEADS, length, DIM), 0.5, dtype=np.float32))

    @invariant()
    def counts_agree(self) -> None:
        stats = self.cache.stats()
        assert stats.num_bytes == stats.num_blocks * BLOCK_BYTES
        assert stats.num_blocks <= self.budget_blocks
        assert stats.num_blocks + stats.evicted_blocks >= min(len(self.seen), 1)
        assert stats.cached_tokens == self.served
        if len(self.seen) <= self.budget_blocks:
            assert stats.num_blocks == len(self.seen)
            assert stats.evicted_blocks == 0


PrefixMachine.TestCase.settings = settings(max_examples=100, deadline=None)
test_what_is_served_is_what_was_asked_for_and_the_budget_holds = PrefixMachine.TestCase


def test_the_least_recently_used_leaf_goes_first_and_parents_stay() -> None:
    cache = PrefixCache(4 * BLOCK_BYTES, BLOCK)
    trunk, left, right = (1, 1), (1, 1, 2, 2), (1, 1, 3, 3)
    for ids in (trunk, left, right):
        stored(cache, ids)
    assert num_matched(cache, left) == 4
    stored(cache, (4, 4, 5, 5))
    assert [num_matched(cache, ids) for ids in (left, right)] == [4, 2]
    assert cache.stats().evicted_blocks == 1
    assert cache.stats().num_blocks == 4


def test_a_row_too_long_for_the_budget_keeps_its_beginning() -> None:
    cache = PrefixCache(3 * BLOCK_BYTES + 1, BLOCK)
    ids = tuple(range(20))
    stored(cache, ids)
    stored(cache, ids)
    assert num_matched(cache, ids) == 6
    assert cache.stats().evicted_blocks == 0


def test_a_block_larger_than_the_budget_evicts_nothing_and_is_not_kept() -> None:
    cache = PrefixCache(BLOCK_BYTES - 1, BLOCK)
    stored(cache, (1, 2, 3, 4))
    assert num_matched(cache, (1, 2, 3, 4)) == 0
    assert (cache.stats().num_bytes, cache.stats().evicted_blocks) == (0, 0)


def test_a_salt_without_blocks_leaves_nothing_behind() -> None:
    cache = PrefixCache(2 * BLOCK_BYTES, BLOCK)
    for number in range(50):
        stored(cache, (1, 2), PrefixSalt(text=str(number)))
    assert len(cache._roots) == 2


def test_what_is_held_is_not_read_again() -> None:
    cache = PrefixCache(10**6, BLOCK)
    stored(cache, (1, 2, 3, 4))
    other = SlotCache(LAYERS)
    fill(other, 0, np.zeros((1, HEADS, 6, DIM), dtype=np.float32))
    cache.store(NO_SALT, (1, 2, 3, 4, 5, 6), other, 0, 6)
    cache.load(cache.match(NO_SALT, (1, 2, 3, 4, 5, 6, 7)), other, 0)
    keys = held(other, 0, 6)[0]
    np.testing.assert_array_equal(keys[:, :, :4], content(NO_SALT, (1, 2, 3, 4)))
    assert not keys[:, :, 4:].any()


def blocks_of(cache: PrefixCache, ids: tuple[int, ...]) -> SlotArrays:
    """The arrays behind a match."""
    (piece,) = cache.match(NO_SALT, (*ids, 0)).pieces
    return piece.arrays


@pytest.mark.parametrize("change", ["write", "growth", "move", "step"])
def test_nothing_done_to_a_slot_changes_a_stored_block(change: str) -> None:
    cache, storage = PrefixCache(10**6, BLOCK), SlotCache(LAYERS)
    ids = tuple(range(8))
    fill(storage, 1, np.zeros((1, HEADS, 8, DIM), dtype=np.float32))
    fill(storage, 0, content(NO_SALT, ids))
    cache.store(NO_SALT, ids, storage, 0, 8)
    new = mx.ones((1, HEADS, 8, DIM))
    if change == "write":
        storage.write(0, 0, ((new, new),) * LAYERS)
    elif change == "growth":
        storage.write(2, 600, ((new, new),) * LAYERS)
    elif change == "move":
        storage.move(1, 0)
    else:
        for view in storage.views(0, (3,), 8):
            mx.eval(view.update_and_fetch(new, new))
    mx.eval(storage.read(0, 0, 8))
    for layer in blocks_of(cache, ids):
        np.testing.assert_array_equal(np.array(layer[0]), content(NO_SALT, ids))
        np.testing.assert_array_equal(np.array(layer[1]), -content(NO_SALT, ids))


on_cpu = pytest.mark.skipif(
    backend_info().device != "cpu", reason="the CPU's short queue makes memory deterministic"
)


def large_storage() -> tuple[SlotCache, int]:
    """A cache of 20 layers with two slots of 1,024 positions, and its bytes."""
    storage = SlotCache(20)
    new = mx.ones((2, 4, 1000, 16))
    for view in storage.views(0, (0, 0), 1000):
        mx.eval(view.update_and_fetch(new, new))
    return storage, storage.num_bytes


def memory() -> int:
    """Bytes MLX holds now."""
    gc.collect()
    mx.synchronize()
    return mx.get_active_memory()


@on_cpu
def test_a_step_after_a_store_writes_in_place() -> None:
    storage, size = large_storage()
    cache = PrefixCache(10**9)
    before = memory()
    mx.reset_peak_memory()
    cache.store(NO_SALT, range(960), storage, 0, 960)
    one = mx.ones((2, 4, 1, 16))
    for view in storage.views(0, (1000, 1000), 1):
        launch(*view.update_and_fetch(one, one))
    mx.synchronize()
    copied = mx.get_peak_memory() - before - cache.stats().num_bytes
    assert copied < size / 20, "one layer's arrays at most"


@on_cpu
def test_blocks_do_not_keep_the_cache_alive() -> None:
    before = memory()
    storage, size = large_storage()
    cache = PrefixCache(10**9)
    cache.store(NO_SALT, range(64), storage, 0, 64)
    del storage
    kept = num_bytes(blocks_of(cache, tuple(range(64))))
    assert kept == cache.stats().num_bytes
    assert memory() - before < kept + size / 20
