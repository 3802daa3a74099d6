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
from engine.cache.attention import AttentionStore, Packing, Plain
from engine.cache.positions import ArrayKind
from engine.cache.prefix import RUN_BLOCKS, CachedPrefix, PrefixCache, PrefixSalt, Run
from engine.cache.quantised import Quantised
from engine.cache.slots import SlotCache
from engine.cache.stretch import SlotArrays, num_bytes

NO_SALT = PrefixSalt()
BLOCK = 2
HEADS, DIM = 2, 32
KEYS = ArrayKind((HEADS, DIM), mx.float32)
BLOCK_BYTES = BLOCK * HEADS * 2 * 4 * (DIM + DIM // 4 + 2)
"""Keys and values of a plain layer; packed words, a scale and a bias of a quantised one."""


def slots(num_slots: int = 3, capacity: int = 512) -> SlotCache:
    """A plain layer and one of 8 bits."""
    stores = [AttentionStore(KEYS, KEYS, packing) for packing in (Plain(), Quantised(8, 32))]
    storage = SlotCache(stores)
    storage.resize(num_slots, capacity)
    return storage


def content(salt: PrefixSalt, ids: tuple[int, ...]) -> np.ndarray:
    """What a slot holds after these ids: at each position, a digest of all up to it."""
    digests = [
        hashlib.sha256(repr((salt, ids[: end + 1])).encode()).digest() for end in range(len(ids))
    ]
    return np.array([1 + int.from_bytes(digest[:2]) for digest in digests])


def laid_out(numbers: np.ndarray) -> list[np.ndarray]:
    """A number a position in the form of all arrays of a slot, each array's own and exact."""
    arrays = [array for layer in slots(1, 1).read(0, 0, 1) for array in layer]
    return [
        np.broadcast_to(
            (numbers[None, :, None] * (1 + index)).astype(np.array(array).dtype),
            (HEADS, len(numbers), array.shape[-1]),
        )
        for index, array in enumerate(arrays)
    ]


def fill(storage: SlotCache, slot: int, numbers: np.ndarray) -> None:
    """Write numbers to the beginning of a slot, in all layers."""
    arrays = [mx.array(array) for array in laid_out(numbers)]
    storage.write(slot, 0, (tuple(arrays[:2]), tuple(arrays[2:])))


def assert_holds(arrays: SlotArrays, numbers: np.ndarray) -> None:
    """Compare every bit of a stretch."""
    flat = [np.array(array) for layer in arrays for array in layer]
    assert len(flat) == 2 + 6
    for array, expected in zip(flat, laid_out(numbers), strict=True):
        np.testing.assert_array_equal(array, expected, strict=True)


def stored(cache: PrefixCache, ids: tuple[int, ...], salt: PrefixSalt = NO_SALT) -> None:
    """Store a row of these ids."""
    storage = slots(1, 64)
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
        self.storage = slots()
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
            loaded = self.storage.read(slot, 0, prefix.num_tokens)
            assert_holds(loaded, content(salt, ids[: prefix.num_tokens]))

    @rule(slot=st.integers(0, 2), length=st.sampled_from([5, 40, 300]))
    def overwrite(self, slot: int, length: int) -> None:
        fill(self.storage, slot, np.zeros(length))

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


PrefixMachine.TestCase.settings = settings(max_examples=100)
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


def test_blocks_are_freed_as_the_cache_is_cleared_and_not_when_garbage_is_collected() -> None:
    cache = PrefixCache(100 * BLOCK_BYTES, BLOCK)
    for ids in ((0,) * 60, (0,) * 30 + (1,) * 30):
        stored(cache, ids)
    gc.collect()
    gc.disable()
    try:
        before, held = runs_alive(), len(cache._runs)
        cache.clear()
        assert before - runs_alive() == held > 1
    finally:
        gc.enable()


def runs_alive() -> int:
    return sum(type(held) is Run for held in gc.get_objects())


def test_what_is_held_is_not_read_again() -> None:
    cache = PrefixCache(10**6, BLOCK)
    stored(cache, (1, 2, 3, 4))
    other = slots()
    fill(other, 0, np.zeros(6))
    cache.store(NO_SALT, (1, 2, 3, 4, 5, 6), other, 0, 6)
    cache.load(cache.match(NO_SALT, (1, 2, 3, 4, 5, 6, 7)), other, 0)
    assert_holds(other.read(0, 0, 4), content(NO_SALT, (1, 2, 3, 4)))
    assert_holds(other.read(0, 4, 6), np.zeros(2))


def test_a_load_touches_nothing_but_the_beginning_of_its_slot() -> None:
    cache, storage = PrefixCache(10**6, BLOCK), slots()
    ids = tuple(range(2 * BLOCK * RUN_BLOCKS + 3))
    stored(cache, ids)
    for slot in range(3):
        fill(storage, slot, np.full(50, slot))
    cache.load(cache.match(NO_SALT, ids), storage, 1)
    end = len(ids) // BLOCK * BLOCK
    assert_holds(storage.read(1, 0, end), content(NO_SALT, ids[:end]))
    assert_holds(storage.read(1, end, 50), np.full(50 - end, 1))
    for slot in (0, 2):
        assert_holds(storage.read(slot, 0, 50), np.full(50, slot))


def blocks_of(cache: PrefixCache, ids: tuple[int, ...]) -> SlotArrays:
    """The arrays behind a match."""
    (piece,) = cache.match(NO_SALT, (*ids, 0)).pieces
    return piece.arrays


@pytest.mark.parametrize("change", ["write", "growth", "shrinking", "move", "step", "ragged step"])
def test_nothing_done_to_a_slot_changes_a_stored_block(change: str) -> None:
    cache, storage = PrefixCache(10**6, BLOCK), slots()
    ids = tuple(range(8))
    fill(storage, 1, np.zeros(8))
    fill(storage, 0, content(NO_SALT, ids))
    cache.store(NO_SALT, ids, storage, 0, 8)
    new = mx.ones((2, HEADS, 8, DIM))
    if change == "write":
        fill(storage, 0, np.ones(8))
    elif change == "growth":
        storage.resize(4, 768)
        fill(storage, 0, np.ones(600))
    elif change == "shrinking":
        storage.resize(1, 4)
    elif change == "move":
        storage.move(1, 0)
    else:
        starts = (3, 3) if change == "step" else (3, 5)
        for view in storage.views(0, starts, (8, 8), 8):
            mx.eval(view.update_and_fetch(new, new))
    mx.eval(storage.read(0, 0, 4))
    assert_holds(blocks_of(cache, ids), content(NO_SALT, ids))


on_cpu = pytest.mark.skipif(
    backend_info().device != "cpu", reason="the CPU's short queue makes memory deterministic"
)


def large_storage(packing: Packing) -> tuple[SlotCache, int]:
    """A cache of 20 layers with two slots of 1,024 positions, and its bytes."""
    kind = ArrayKind((4, DIM), mx.float32)
    storage = SlotCache([AttentionStore(kind, kind, packing) for _ in range(20)])
    storage.resize(2, 1024)
    new = mx.ones((2, 4, 1000, DIM))
    for view in storage.views(0, (0, 0), (1000, 1000), 1000):
        mx.eval(view.update_and_fetch(new, new))
    return storage, storage.num_bytes


def memory() -> int:
    """Bytes MLX holds now."""
    gc.collect()
    mx.synchronize()
    return mx.get_active_memory()


packings = pytest.mark.parametrize("packing", [Plain(), Quantised(8, 32)], ids=["plain", "8 bits"])


@on_cpu
@packings
def test_a_step_after_a_store_writes_in_place(packing: Packing) -> None:
    storage, size = large_storage(packing)
    cache = PrefixCache(10**9)
    before = memory()
    mx.reset_peak_memory()
    cache.store(NO_SALT, range(960), storage, 0, 960)
    one = mx.ones((2, 4, 1, DIM))
    for view in storage.views(0, (1000, 1000), (1, 1), 1):
        launch(*view.update_and_fetch(one, one))
    mx.synchronize()
    copied = mx.get_peak_memory() - before - cache.stats().num_bytes
    assert copied < size / 20, "one layer's arrays at most"


@on_cpu
@packings
def test_blocks_do_not_keep_the_cache_alive(packing: Packing) -> None:
    before = memory()
    storage, size = large_storage(packing)
    cache = PrefixCache(10**9)
    cache.store(NO_SALT, range(64), storage, 0, 64)
    del storage
    kept = num_bytes(blocks_of(cache, tuple(range(64))))
    assert kept == cache.stats().num_bytes
    assert memory() - before < kept + size / 20
