"""Which store each layer of a model needs, found without computing anything."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    KVCache,
    RotatingKVCache,
    make_prompt_cache,
)

from engine.cache.attention import AttentionStore, Packing, Plain
from engine.cache.positions import ArrayKind
from engine.cache.quantised import quantised
from engine.cache.recurrent import RecurrentStore
from engine.cache.store import GroupStore, LayerStore
from engine.errors import ModelError

GROUPED_SCORES = frozenset({"gemma2"})
"""Model types of mlx-lm whose attention adds a mask array to scores [rows, kv_heads, repeats,
width, extent] without giving it the axis of repeats."""


def build_stores(name: str, model: Module, kv_bits: int | None = None) -> list[LayerStore]:
    """Return an empty store for each cache the model asks for.

    One token is fed lazily with mlx-lm's own caches; their shapes are known without a wait.

    Args:
        name: how errors call the model.
        kv_bits: 8 or 4 quantises keys and values, None leaves them.

    Raises:
        ModelError: a layer keeps something that does not fit a slot, or its heads cannot be
            quantised.
    """
    caches = make_prompt_cache(model)
    model(mx.array([[0]]), cache=caches)
    layout = _Layout(name, kv_bits, getattr(model, "model_type", "") in GROUPED_SCORES)
    return [layout.store(cache) for cache in caches]


class _Layout:
    """Turns mlx-lm's caches, each of one token, into stores."""

    def __init__(self, name: str, kv_bits: int | None, grouped: bool) -> None:
        self._name = name
        self._kv_bits = kv_bits
        self._grouped = grouped

    def store(self, cache: Any) -> LayerStore:
        """Return the store that holds what `cache` holds."""
        if type(cache) in {KVCache, RotatingKVCache}:
            return self._attention(cache)
        if type(cache) is ArraysCache:
            return self._recurrent(cache)
        if type(cache) is CacheList:
            return GroupStore([self.store(part) for part in cache.caches])
        raise ModelError(
            f"{self._name} keeps {type(cache).__name__} in some layers; fm runs models whose "
            "layers are full or windowed attention or keep a state of fixed size, choose one of "
            "those"
        )

    def _attention(self, cache: Any) -> AttentionStore:
        if cache.keys is None:
            raise ModelError(
                f"{self._name} has a cache that its layers do not use; fm cannot tell its shape, "
                "choose another model"
            )
        keys, values = _position(cache.keys), _position(cache.values)
        return AttentionStore(keys, values, self._packing(keys, values), self._grouped)

    def _packing(self, keys: ArrayKind, values: ArrayKind) -> Packing:
        if self._kv_bits is None:
            return Plain()
        return quantised(self._kv_bits, self._name, keys.shape[-1], values.shape[-1])

    def _recurrent(self, cache: Any) -> RecurrentStore:
        if any(state is None for state in cache.cache):
            raise ModelError(
                f"{self._name} keeps states in ArraysCache that are not set by every token; fm "
                "cannot carry them, choose another model"
            )
        return RecurrentStore([ArrayKind(s.shape[1:], s.dtype) for s in cache.cache])


def _position(array: mx.array) -> ArrayKind:
    """Return the kind of [rows, heads, length, width]."""
    return ArrayKind((array.shape[1], array.shape[3]), array.dtype)
