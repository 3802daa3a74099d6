"""The fused step computes what the model's own layers compute, for rows of any length and slot."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

from engine.cache.layout import build_stores
from engine.cache.slots import SlotCache
from engine.fused import reference
from engine.fused.parts import take_parts
from engine.fused.step import decode, fused_step

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8], list(range(9, 20))]
STARTS = [len(prompt) for prompt in PROMPTS]
IDS = np.array([[30, 31], [40, 41], [50, 51]])


def prefilled(model: Any) -> SlotCache:
    cache = SlotCache(build_stores("tiny", model))
    cache.resize(len(PROMPTS), 256)
    for slot, prompt in enumerate(PROMPTS):
        views = cache.views(slot, (0,), (len(prompt),), len(prompt))
        mx.eval(model(mx.array([prompt]), cache=views))
    return cache


def fused_logits(model: Any, cache: SlotCache, rows: list[int], ids: np.ndarray) -> np.ndarray:
    parts = take_parts(model)
    assert parts is not None
    starts = [STARTS[row] for row in rows]
    keys, values = zip(*cache.arrays(), strict=True)
    step = (parts, reference, mx.array(ids[rows]), mx.array(rows), mx.array(starts))
    return np.array(decode(*step, keys, values))


def test_the_step_gives_the_models_own_logits(model: Any) -> None:
    expected = np.array(model(mx.array(IDS), cache=prefilled(model).views(0, STARTS, (2, 2, 2), 2)))
    found = fused_logits(model, prefilled(model), [0, 1, 2], IDS)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_rows_may_come_in_any_order_and_without_their_neighbours(model: Any) -> None:
    expected = np.array(model(mx.array(IDS), cache=prefilled(model).views(0, STARTS, (2, 2, 2), 2)))
    found = fused_logits(model, prefilled(model), [2, 0], IDS)
    np.testing.assert_allclose(found, expected[[2, 0]], atol=1e-5)


def test_the_step_leaves_in_the_cache_what_the_models_layers_leave(model: Any) -> None:
    fused, plain = prefilled(model), prefilled(model)
    mx.eval(model(mx.array(IDS), cache=plain.views(0, STARTS, (2, 2, 2), 2)))
    fused_logits(model, fused, [0, 1, 2], IDS)
    for found, expected in zip(fused.arrays(), plain.arrays(), strict=True):
        for ours, theirs in zip(found, expected, strict=True):
            for slot, start in enumerate(STARTS):
                np.testing.assert_allclose(
                    np.array(ours[slot, :, : start + 2]),
                    np.array(theirs[slot, :, : start + 2]),
                    atol=1e-5,
                )


def test_a_prompt_after_a_fused_step_reads_what_the_step_wrote(model: Any) -> None:
    fused, plain = prefilled(model), prefilled(model)
    mx.eval(model(mx.array(IDS[:1]), cache=plain.views(0, STARTS[:1], (2,), 2)))
    fused_logits(model, fused, [0], IDS)
    more = mx.array([[60, 61, 62]])
    after = (STARTS[0] + 2,)
    expected = np.array(model(more, cache=plain.views(0, after, (3,), 3)))
    found = np.array(model(more, cache=fused.views(0, after, (3,), 3)))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_model_in_float32_keeps_its_own_layers() -> None:
    from .conftest import small_llama

    assert fused_step(small_llama()) is None
