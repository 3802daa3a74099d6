"""What a row takes from the prefix cache before its prompt, and leaves there after it."""

from __future__ import annotations

from dataclasses import replace

from mlx.nn.layers.base import Module
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache

from engine.cache.prefix import CachedPrefix, PrefixCache, PrefixSalt, PrefixStats
from engine.cache.stretch import SlotStorage
from engine.config import EngineConfig
from engine.sequence import Sequence


class PrefixReuse:
    """The rows of one engine and its prefix cache.

    Args:
        storage: the slots of the engine's runner.
        cache: None when nothing is cached.
        reason: why nothing is cached.
    """

    def __init__(self, storage: SlotStorage, cache: PrefixCache | None, reason: str = "") -> None:
        self._storage = storage
        self._cache = cache
        self._reason = reason
        self._matched: dict[int, CachedPrefix] = {}

    def match(self, sequence: Sequence) -> int:
        """Return how many leading prompt tokens `load` will put into the row's slot."""
        if self._cache is None:
            return 0
        prefix = self._cache.match(_salt(sequence), sequence.request.prompt_ids)
        if prefix.num_tokens:
            self._matched[id(sequence)] = prefix
        return prefix.num_tokens

    def load(self, sequence: Sequence, slot: int) -> None:
        """Write what was matched for the row, once, before its first forward."""
        prefix = self._matched.get(id(sequence))
        if self._cache is not None and prefix is not None:
            self._cache.load(prefix, self._storage, slot)
            self.forget(sequence)

    def store(self, sequence: Sequence, slot: int) -> None:
        """Keep the tokens of the row whose keys and values are in its slot.

        A row that ended inside a burst has fewer ids than its slot has positions.
        """
        if self._cache is not None:
            held = min(sequence.num_cached, len(sequence.ids))
            self._cache.store(_salt(sequence), sequence.ids, self._storage, slot, held)

    def forget(self, sequence: Sequence) -> None:
        """Drop what was matched for a row and not loaded; unknown rows are ignored."""
        self._matched.pop(id(sequence), None)

    def stats(self) -> PrefixStats:
        """Return the totals of the cache, or why there is none."""
        stats = PrefixStats() if self._cache is None else self._cache.stats()
        return replace(stats, reason=self._reason)


def open_reuse(config: EngineConfig, model: Module, storage: SlotStorage) -> PrefixReuse:
    """Return the prefix cache the settings ask for, as far as the model can carry it."""
    if config.prefix_cache_bytes == 0:
        return PrefixReuse(storage, None, "prefix_cache_bytes is 0")
    others = unpositioned_states(model)
    if others:
        reason = f"{', '.join(others)} keeps no state by position, so no prefix can be cut from it"
        return PrefixReuse(storage, None, reason)
    return PrefixReuse(storage, PrefixCache(config.prefix_cache_bytes))


def unpositioned_states(model: Module) -> list[str]:
    """Return the cache types of a model that hold something else than one entry a position."""
    kinds = {type(cache) for cache in make_prompt_cache(model)}
    return sorted(kind.__name__ for kind in kinds - {KVCache, RotatingKVCache})


def _salt(sequence: Sequence) -> PrefixSalt:
    return PrefixSalt(text=sequence.request.cache_salt)
