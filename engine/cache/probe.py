"""What a model file of mlx-lm makes of slots, tried before a model is used.

Shapes that do not fit raise while a forward is built, so those trials compute nothing. Whether
padding stays out of recurrent states shows only in numbers: that trial computes a few tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.models.cache import ArraysCache, CacheList, make_prompt_cache

from engine.cache.layout import build_stores
from engine.cache.slots import SlotCache
from engine.errors import ModelError

WRONG_SHAPES = (AttributeError, IndexError, RuntimeError, TypeError, ValueError)
"""What a model file raises when it cannot use what a view gives it."""

STATE_TOLERANCE = 0.05
"""Largest difference of a padded row's state from an unpadded one, relative to its norm: half
precision stays a factor of ten below, a padding token that enters the state is far above."""

FIRST_IDS = (1, 2)
THEN_IDS = (3, 4, 5)
WIDTH = 5


@dataclass(frozen=True, slots=True)
class StepSupport:
    """Which steps a model file computes.

    Args:
        ragged_fault: why rows of different lengths cannot share a step; "" when they can.
    """

    ragged_fault: str = ""


def probe_steps(name: str, model: Module, kv_bits: int | None) -> StepSupport:
    """Try a model's steps. Waits for the device when the model has recurrent layers.

    Raises:
        ModelError: not even a row alone can be computed right with slots.
    """
    cache = SlotCache(build_stores(name, model, kv_bits))
    fault = _fault(model, cache, starts=(0,), width=2)
    if fault and kv_bits is not None:
        raise ModelError(
            f"{name} does not read quantised keys and values ({fault}); leave kv_bits unset for "
            "this model"
        )
    if fault:
        raise ModelError(
            f"{name} uses its cache in a way that slots do not offer ({fault}); choose another "
            "model"
        )
    if not cache.is_rewindable:
        _check_states(name, model)
    # three rows of two columns: offsets of rows added to columns cannot pass by accident
    return StepSupport(_fault(model, cache, starts=(0, 1, 2), width=2))


def _fault(model: Module, cache: SlotCache, starts: tuple[int, ...], width: int) -> str:
    """Return what building a forward raises, "" when nothing."""
    cache.resize(len(starts), max(starts) + width)
    views = cache.views(0, starts, (width,) * len(starts), width)
    try:
        model(mx.zeros((len(starts), width), mx.int32), cache=views)
    except WRONG_SHAPES as error:
        return str(error).partition("\n")[0].strip(" .")[:120] or type(error).__name__
    return ""


def _check_states(name: str, model: Module) -> None:
    """Raise ModelError unless padded and idle rows keep the states they would have alone."""
    cache = SlotCache(build_stores(name, model))
    cache.resize(3, len(FIRST_IDS) + WIDTH)
    layer = next(i for i, own in enumerate(make_prompt_cache(model)) if _states(own) is not None)
    _feed(model, cache, (0, 0, 0), [FIRST_IDS] * 3, len(FIRST_IDS))
    idle = cache.read(2, 0, 0)[layer]
    rows = [(*THEN_IDS, 6, 7), THEN_IDS, ()]
    _feed(model, cache, (len(FIRST_IDS),) * 3, rows, WIDTH)
    same = all(
        bool(mx.array_equal(a, b)) for a, b in zip(cache.read(2, 0, 0)[layer], idle, strict=True)
    )
    alone = [_alone(model, row, layer) for row in rows[:2]]
    held = [cache.read(slot, 0, 0)[layer] for slot in (0, 1)]
    if not (same and all(_close(h, a) for h, a in zip(held, alone, strict=True))):
        raise ModelError(
            f"{name}: its model file in mlx-lm lets padding into the states of its recurrent "
            "layers, or sets them elsewhere than in its cache; fm cannot run it, choose another "
            "model"
        )


def _feed(model: Module, cache: SlotCache, starts: tuple[int, ...], rows: Any, width: int) -> None:
    ids = mx.array([[*row, *[0] * (width - len(row))] for row in rows])
    model(ids, cache=cache.views(0, starts, [len(row) for row in rows], width))


def _alone(model: Module, then: tuple[int, ...], layer: int) -> list[mx.array]:
    """Return the first recurrent layer's states after a row alone, in mlx-lm's own cache."""
    caches = make_prompt_cache(model)
    for ids in (FIRST_IDS, then):
        model(mx.array([ids]), cache=caches)
    return [state[0] for state in _states(caches[layer]) or ()]


def _states(cache: Any) -> list[mx.array] | None:
    """Return the states of one of mlx-lm's caches, None when it has none."""
    if isinstance(cache, CacheList):
        return next((found for part in cache.caches if (found := _states(part)) is not None), None)
    if isinstance(cache, ArraysCache):
        held: Any = cache.cache
        return list(held)
    return None


def _close(held: tuple[mx.array, ...], alone: list[mx.array]) -> bool:
    return all(
        (mx.linalg.norm(h - a) <= STATE_TOLERANCE * mx.linalg.norm(a)).item()
        for h, a in zip(held, alone, strict=False)
    )
