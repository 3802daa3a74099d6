"""Keys and values of prompts seen before, in blocks of tokens that no slot can change.

A block belongs to everything before it: blocks form a tree for each salt, keyed by the token ids
themselves, so what is found is what was asked for. Blocks stored by one call lie together in runs,
which keeps a load to a few operations a layer; a run is held and evicted as one.

Runs are kept in order of use, a chain's deepest run before its parents. So a run is always older
than what it hangs from, the oldest is a leaf, and eviction is taking the oldest.

Everything runs on the thread that steps the engine. Nothing here waits for the device.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from engine.cache.stretch import SlotArrays, SlotStorage, cut, launch_copies, num_bytes

RUN_BLOCKS = 8
"""Most blocks of a run: 2,000 tokens load in 4 writes an array instead of 31 (0.9 instead of 3.5 ms
of host time for 30 layers), and at most 7 unused blocks stay with a used one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixSalt:
    """What keys and values depend on besides tokens, and who may share them.

    Args:
        text: chosen by the caller; rows with different texts never share.
        adapter: name of the row's adapter.
        kv_bits: bits of quantised keys and values, 0 when they are floats.
    """

    text: str = ""
    adapter: str = ""
    kv_bits: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixStats:
    """Totals of a prefix cache.

    Args:
        hits, misses: prompts that found at least one block, and those that found none.
        cached_tokens: tokens loaded instead of computed.
        num_bytes, num_blocks: what is held now.
        evicted_blocks: blocks dropped to make room.
        reason: why nothing is cached at all; empty while the cache is in use.
    """

    hits: int = 0
    misses: int = 0
    cached_tokens: int = 0
    num_bytes: int = 0
    num_blocks: int = 0
    evicted_blocks: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """The first `num_tokens` tokens of a run's arrays."""

    arrays: SlotArrays
    num_tokens: int


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """Blocks found for a prompt; they stay loadable when the cache evicts them meanwhile."""

    pieces: tuple[Piece, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Leading tokens of the prompt that need not be computed."""
        return sum(piece.num_tokens for piece in self.pieces)


@dataclass(slots=True, eq=False)
class Run:
    """Consecutive blocks stored together.

    Args:
        siblings: where the first block hangs, under `key`.
    """

    salt: PrefixSalt
    arrays: SlotArrays
    num_blocks: int
    num_bytes: int
    siblings: dict[bytes, Block]
    key: bytes


@dataclass(slots=True, eq=False)
class Block:
    """One block of tokens behind one prefix.

    Args:
        count: blocks of the run up to and with this one.
        children: the blocks seen behind it, by their token ids.
    """

    run: Run
    count: int
    children: dict[bytes, Block] = field(default_factory=dict)


class PrefixCache:
    """Blocks of keys and values under a byte budget, the least recently used evicted first.

    Args:
        budget_bytes: most bytes held, counted from the arrays.
        block_tokens: tokens of a block; only whole blocks are kept.
    """

    def __init__(self, budget_bytes: int, block_tokens: int = 64) -> None:
        self._budget_bytes = budget_bytes
        self._block_tokens = block_tokens
        self._roots: dict[PrefixSalt, dict[bytes, Block]] = {}
        self._runs: OrderedDict[Run, None] = OrderedDict()
        self._num_bytes = self._num_blocks = self._evicted_blocks = 0
        self._hits = self._misses = self._cached_tokens = 0

    def stats(self) -> PrefixStats:
        """Return totals since the cache was made."""
        return PrefixStats(
            hits=self._hits,
            misses=self._misses,
            cached_tokens=self._cached_tokens,
            num_bytes=self._num_bytes,
            num_blocks=self._num_blocks,
            evicted_blocks=self._evicted_blocks,
        )

    def clear(self) -> None:
        """Drop all blocks; prefixes found before stay loadable."""
        for run in self._runs:
            run.siblings.clear()  # a run and its blocks refer to each other, and garbage waits
        self._roots, self._runs = {}, OrderedDict()
        self._evicted_blocks += self._num_blocks
        self._num_bytes = self._num_blocks = 0

    def match(self, salt: PrefixSalt, ids: Sequence[int]) -> CachedPrefix:
        """Return the longest chain of held blocks that leaves a token of `ids` to compute."""
        chain = self._chain(salt, self._keys(ids, len(ids) - 1))
        self._hits += bool(chain)
        self._misses += not chain
        self._touch(chain)
        counts = {block.run: block.count for block in chain}
        return CachedPrefix(
            tuple(Piece(run.arrays, count * self._block_tokens) for run, count in counts.items())
        )

    def load(self, prefix: CachedPrefix, storage: SlotStorage, slot: int) -> None:
        """Write a prefix to the beginning of a slot."""
        start = 0
        for piece in prefix.pieces:
            storage.write(slot, start, cut(piece.arrays, piece.num_tokens))
            start += piece.num_tokens
        self._cached_tokens += start

    def store(
        self,
        salt: PrefixSalt,
        ids: Sequence[int],
        storage: SlotStorage,
        slot: int,
        num_cached: int,
    ) -> None:
        """Keep the whole blocks of a slot that are not held yet, as far as the budget allows.

        Args:
            num_cached: leading ids whose keys and values the slot holds.
        """
        keys = self._keys(ids, num_cached)
        chain = self._chain(salt, keys)
        self._touch(chain)
        while missing := keys[len(chain) :][:RUN_BLOCKS]:
            added = self._extend(salt, chain, missing, storage, slot)
            chain += added
            if len(added) < len(missing):
                break
        self._touch(chain)

    def _keys(self, ids: Sequence[int], num_tokens: int) -> list[bytes]:
        """Return the token ids of every whole block among the first `num_tokens`."""
        size = self._block_tokens
        whole = np.array(ids[: num_tokens // size * size], dtype=np.uint32)
        return [block.tobytes() for block in whole.reshape(-1, size)]

    def _chain(self, salt: PrefixSalt, keys: Sequence[bytes]) -> list[Block]:
        """Return the held blocks of `keys` from the first on, until one is missing."""
        chain: list[Block] = []
        level = self._roots.get(salt, {})
        for key in keys:
            if key not in level:
                break
            chain.append(level[key])
            level = chain[-1].children
        return chain

    def _touch(self, chain: Sequence[Block]) -> None:
        """Make the runs of a chain the newest, each newer than what hangs from it."""
        for run in dict.fromkeys(block.run for block in reversed(chain)):
            self._runs.move_to_end(run)

    def _extend(
        self,
        salt: PrefixSalt,
        chain: Sequence[Block],
        keys: Sequence[bytes],
        storage: SlotStorage,
        slot: int,
    ) -> list[Block]:
        """Store as many of `keys` behind a chain as fit in one run; return their blocks."""
        start = len(chain) * self._block_tokens
        arrays = storage.read(slot, start, start + len(keys) * self._block_tokens)
        block_bytes = num_bytes(arrays) // len(keys)
        kept_bytes = sum(run.num_bytes for run in {block.run for block in chain})
        count = min(len(keys), (self._budget_bytes - kept_bytes) // block_bytes)
        if count < 1:
            return []
        if count < len(keys):
            arrays = storage.read(slot, start, start + count * self._block_tokens)
        self._make_room(count * block_bytes)
        launch_copies(arrays)
        return self._attach(salt, chain, keys[:count], arrays)

    def _make_room(self, wanted: int) -> None:
        """Evict the oldest runs until `wanted` more bytes are within the budget."""
        while self._num_bytes + wanted > self._budget_bytes:
            run, _ = self._runs.popitem(last=False)
            del run.siblings[run.key]
            if not self._roots[run.salt]:
                del self._roots[run.salt]
            self._num_bytes -= run.num_bytes
            self._num_blocks -= run.num_blocks
            self._evicted_blocks += run.num_blocks

    def _attach(
        self, salt: PrefixSalt, chain: Sequence[Block], keys: Sequence[bytes], arrays: SlotArrays
    ) -> list[Block]:
        """Hang a new run under the end of a chain; return its blocks."""
        level = chain[-1].children if chain else self._roots.setdefault(salt, {})
        run = Run(salt, arrays, len(keys), num_bytes(arrays), level, keys[0])
        blocks = [Block(run, index + 1) for index in range(len(keys))]
        for key, block in zip(keys, blocks, strict=True):
            level[key] = block
            level = block.children
        self._runs[run] = None
        self._num_bytes += run.num_bytes
        self._num_blocks += run.num_blocks
        return blocks
