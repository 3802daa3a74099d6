"""What slots hold survives moves and changes of size, and nothing else touches it."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cache.attention import AttentionStore, Plain
from engine.cache.layout import build_stores
from engine.cache.positions import ArrayKind
from engine.cache.quantised import Quantised
from engine.cache.recurrent import RecurrentStore
from engine.cache.slots import SlotCache
from engine.cache.store import GroupStore
from engine.cache.stretch import SlotArrays
from engine.kv_budget import KvBudget, KvCosts, Rectangle
from tests.engine.cache.families import CARRIED, family

HEADS, DIM, STATE = 2, 32, (3, 4)
KEYS = ArrayKind((HEADS, DIM), mx.float32)


def slot_cache() -> SlotCache:
    """Three layers: plain keys, a state beside plain keys, quantised keys."""
    state = RecurrentStore([ArrayKind(STATE, mx.float32)])
    return SlotCache(
        [
            AttentionStore(KEYS, KEYS, Plain()),
            GroupStore([state, AttentionStore(KEYS, KEYS, Plain())]),
            AttentionStore(KEYS, KEYS, Quantised(8, 32)),
        ]
    )


def projected_bytes(cache: SlotCache, num_slots: int, capacity: int) -> int:
    """What the KV budget counts for a cache of this size."""
    costs = KvCosts(per_token=cache.bytes_per_token, per_slot=cache.bytes_per_row)
    return KvBudget(costs).bytes_of(Rectangle(num_slots, capacity))


class Shadow:
    """A SlotCache and what it has to hold, in numpy: [slots, heads, capacity, dim] and states."""

    def __init__(self) -> None:
        self.cache = slot_cache()
        self.keys = np.zeros((0, HEADS, 0, DIM), np.float32)
        self.states = np.zeros((0, *STATE), np.float32)

    def resize(self, num_slots: int, capacity: int) -> None:
        self.cache.resize(num_slots, capacity)
        keys, states = self.keys, self.states
        slots, length = min(num_slots, keys.shape[0]), min(capacity, keys.shape[2])
        self.keys = np.zeros((num_slots, HEADS, capacity, DIM), np.float32)
        self.states = np.zeros((num_slots, *STATE), np.float32)
        self.keys[:slots, :, :length] = keys[:slots, :, :length]
        self.states[:slots] = states[:slots]

    def move(self, source: int, destination: int) -> None:
        self.cache.move(source, destination)
        self.keys[destination] = self.keys[source]
        self.states[destination] = self.states[source]

    def step(
        self, first: int, starts: list[int], counts: list[int], width: int, seed: int
    ) -> np.ndarray:
        """Write a step through the views, as a model does; return its idle and real rows' keys."""
        draw = np.random.default_rng(seed)
        new = draw.standard_normal((len(starts), HEADS, width, DIM)).astype(np.float32)
        state = draw.standard_normal((len(starts), *STATE)).astype(np.float32)
        plain, (recurrent, grouped), packed = self.cache.views(first, starts, counts, width)
        fetched, _ = plain.update_and_fetch(mx.array(new), mx.array(-new))
        grouped.update_and_fetch(mx.array(new), mx.array(-new))
        packed.update_and_fetch(mx.array(new), mx.array(-new))
        entered = np.array(recurrent[0])
        recurrent[0] = mx.array(state)
        for row, (start, count) in enumerate(zip(starts, counts, strict=True)):
            self.keys[first + row, :, start : start + width] = new[row]
            before = self.states[first + row].copy()
            if count:
                before = np.zeros(STATE, np.float32) if start == 0 else before
                self.states[first + row] = state[row]
            np.testing.assert_array_equal(entered[row], before)
        return np.array(fetched)

    def check(self) -> None:
        slots, _, capacity, _ = self.keys.shape
        for slot in range(slots):
            self.check_copy(self.cache.read(slot, 0, capacity), slot, 0, capacity)
        assert self.cache.num_bytes == projected_bytes(self.cache, slots, capacity)

    def expected(self, slot: int, start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        return self.keys[slot, :, start:end].copy(), self.states[slot].copy()

    def check_copy(self, kept: SlotArrays, slot: int, start: int, end: int) -> None:
        check_kept(kept, *self.expected(slot, start, end))


def check_kept(kept: SlotArrays, keys: np.ndarray, state: np.ndarray) -> None:
    """Compare what `read` returned with keys and a state; values are minus the keys."""
    plain, group, packed = kept
    np.testing.assert_array_equal(np.array(plain[0]), keys)
    np.testing.assert_array_equal(np.array(plain[1]), -keys)
    np.testing.assert_array_equal(np.array(group[0]), state)
    np.testing.assert_array_equal(np.array(group[1]), keys)
    if keys.size:
        unpacked = np.array(mx.dequantize(*packed[:3], group_size=32, bits=8))
        np.testing.assert_allclose(unpacked, keys, atol=0.03, rtol=0)


def draw_step(data: st.DataObject, shadow: Shadow) -> None:
    """Let some rows write a ragged or uniform step."""
    slots, _, capacity, _ = shadow.keys.shape
    first = data.draw(st.integers(0, slots - 1))
    rows = data.draw(st.integers(1, slots - first))
    width = data.draw(st.integers(1, min(4, capacity)))
    start = st.integers(0, capacity - width)
    uniform = data.draw(st.booleans())
    starts = [data.draw(start)] * rows if uniform else [data.draw(start) for _ in range(rows)]
    counts = [data.draw(st.integers(0, width)) for _ in range(rows)]
    fetched = shadow.step(first, starts, counts, width, data.draw(st.integers(0, 2**31)))
    held = shadow.keys[first : first + rows, :, : max(starts) + width]
    np.testing.assert_array_equal(fetched, held)


@settings(max_examples=60)
@given(data=st.data())
def test_any_sequence_of_steps_moves_sizes_and_copies_matches_a_numpy_shadow(
    data: st.DataObject,
) -> None:
    shadow = Shadow()
    shadow.resize(data.draw(st.integers(1, 4)), data.draw(st.integers(4, 9)))
    copies: list[tuple[SlotArrays, np.ndarray, np.ndarray]] = []
    for _ in range(data.draw(st.integers(1, 10))):
        slots, _, capacity, _ = shadow.keys.shape
        slot = st.integers(0, slots - 1)
        action = data.draw(st.sampled_from(["step", "step", "move", "resize", "read", "write"]))
        if action == "step":
            draw_step(data, shadow)
        elif action == "move":
            shadow.move(data.draw(slot), data.draw(slot))
        elif action == "resize":
            shadow.resize(data.draw(st.integers(1, 5)), data.draw(st.integers(4, 12)))
        elif action == "read":
            index = data.draw(slot)
            start = data.draw(st.integers(0, capacity - 1))
            end = data.draw(st.integers(start, capacity))
            expected = shadow.expected(index, start, end)
            copies.append((shadow.cache.read(index, start, end), *expected))
        elif copies:
            kept, keys, state = data.draw(st.sampled_from(copies))
            if keys.shape[1] <= capacity:
                index = data.draw(slot)
                start = data.draw(st.integers(0, capacity - keys.shape[1]))
                shadow.cache.write(index, start, kept)
                shadow.keys[index, :, start : start + keys.shape[1]] = keys
                shadow.states[index] = state
        shadow.check()
    for kept, keys, state in copies:
        check_kept(kept, keys, state)


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        *((name, None) for name in CARRIED),
        *((name, bits) for name in ("llama", "qwen3_next", "falcon_h1") for bits in (8, 4)),
    ],
)
def test_bytes_are_known_before_anything_is_allocated(name: str, bits: int | None) -> None:
    cache = SlotCache(build_stores(name, family(name).model, bits))
    assert cache.num_bytes == 0
    for num_slots, capacity in [(1, 256), (3, 512), (2, 256)]:
        projected = projected_bytes(cache, num_slots, capacity)
        cache.resize(num_slots, capacity)
        assert cache.num_bytes == projected > 0
        ids = mx.zeros((num_slots, 3), mx.int32)
        views = cache.views(0, [0] * num_slots, [3] * num_slots, 3)
        mx.eval(family(name).model(ids, cache=views))
        assert cache.num_bytes == projected


@pytest.mark.parametrize(
    "step",
    [
        lambda cache: cache.views(0, [0, 0], [1, 1], 1),
        lambda cache: cache.views(1, [0], [1], 1),
        lambda cache: cache.views(0, [253], [1], 4),
        lambda cache: cache.views(0, [0], [5], 4),
    ],
    ids=["too many rows", "beyond the last slot", "padding beyond the end", "more than the width"],
)
def test_a_step_that_does_not_fit_is_our_own_bug(step: Callable[[SlotCache], object]) -> None:
    cache = slot_cache()
    cache.resize(1, 256)
    with pytest.raises(AssertionError):
        step(cache)


def test_a_step_is_settled_before_its_slots_move() -> None:
    cache = slot_cache()
    cache.resize(2, 256)
    cache.views(0, [0, 0], [4, 4], 4)
    cache.move(1, 0)
    with pytest.raises(AssertionError, match="before slots move"):
        cache.settle(0, [1, 1])


def held_bytes() -> int:
    """Bytes that MLX holds after all work is done."""
    mx.synchronize()
    mx.clear_cache()
    return mx.get_active_memory()


@pytest.mark.parametrize("end", [1, 4096], ids=["part of a slot", "a whole slot"])
def test_a_copy_holds_on_to_its_own_bytes_only(end: int) -> None:
    before = held_bytes()
    cache = slot_cache()
    cache.resize(8, 4096)
    cache.views(0, [0] * 8, [4] * 8, 4)
    kept = cache.read(3, 0, end)
    projected = projected_bytes(cache, 1, end)
    del cache
    assert held_bytes() - before <= projected + 100_000
    assert sum(array.nbytes for arrays in kept for array in arrays) <= projected


def test_shrinking_frees_what_is_given_up() -> None:
    before = held_bytes()
    cache = slot_cache()
    cache.resize(8, 4096)
    cache.resize(1, 256)
    for kept in cache.read(0, 0, 256):
        mx.eval(*kept)
    assert held_bytes() - before <= 2 * cache.num_bytes + 100_000
