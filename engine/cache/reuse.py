"""What a row takes from the prefix cache before its prompt, and leaves there after it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from engine.cache.prefix import PrefixCache, PrefixSalt, PrefixStats
from engine.cache.slots import SlotCache
from engine.config import EngineConfig
from engine.sequence import Sequence

LOG = logging.getLogger("fm")


class PrefixReuse:
    """The rows of one engine and its prefix cache, as far as the model can carry one.

    Args:
        slots: of the engine's runner.
    """

    def __init__(self, config: EngineConfig, slots: SlotCache) -> None:
        self._slots = slots
        self._kv_bits = config.kv_bits
        self._reason = _reason(config, slots)
        self._cache = None if self._reason else PrefixCache(config.prefix_cache_bytes)

    def take(self, sequence: Sequence, slot: int) -> None:
        """Put the longest known beginning of a row's prompt into its slot."""
        cache = self._cache
        if cache is None:
            return
        with self._tried(cache):
            prefix = cache.match(self._salt(sequence), sequence.request.prompt_ids)
            if prefix.num_tokens:
                cache.load(prefix, self._slots, slot)
                sequence.num_cached = sequence.cached_tokens = prefix.num_tokens

    def store(self, sequence: Sequence, slot: int) -> None:
        """Keep the tokens of the row whose keys and values are in its slot.

        A row that ended inside a burst has fewer ids than its slot has positions.
        """
        cache = self._cache
        if cache is not None:
            held = min(sequence.num_cached, len(sequence.ids))
            with self._tried(cache):
                cache.store(self._salt(sequence), sequence.ids, self._slots, slot, held)

    def clear(self) -> None:
        """Drop what is kept: it may hang on a computation that failed."""
        if self._cache is not None:
            self._cache.clear()

    @staticmethod
    @contextmanager
    def _tried(cache: PrefixCache) -> Iterator[None]:
        """Go on without what the cache holds when it fails: no row hangs on it."""
        try:
            yield
        except Exception:  # prompts are computed instead
            LOG.exception("the prefix cache failed and starts anew")
            cache.clear()

    def stats(self) -> PrefixStats:
        """Return the totals of the cache, or why there is none."""
        stats = PrefixStats() if self._cache is None else self._cache.stats()
        return replace(stats, reason=self._reason)

    def _salt(self, sequence: Sequence) -> PrefixSalt:
        request = sequence.request
        return PrefixSalt(
            text=request.cache_salt, adapter=request.adapter, kv_bits=self._kv_bits or 0
        )


def _reason(config: EngineConfig, slots: SlotCache) -> str:
    """Return why nothing is cached; empty when something is."""
    if config.prefix_cache_bytes == 0:
        return "prefix_cache_bytes is 0"
    if not slots.is_rewindable:
        return "recurrent layers keep no state by position, so no prefix can be cut from it"
    return ""
