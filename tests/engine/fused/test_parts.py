"""Joined weights are the model's weights, and models that compute anything else are left alone."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

from engine.fused import parts
from engine.fused.parts import take_parts

from .conftest import small_llama


def test_joining_leaves_the_models_logits_as_they_were(model: Any) -> None:
    ids = mx.array([[5, 6, 7, 8]])
    before = np.array(model(ids))
    assert take_parts(model) is not None
    np.testing.assert_allclose(np.array(model(ids)), before, atol=1e-5)


def test_every_product_of_a_model_leaves_the_kernels_at_one_number_of_tokens(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that did earlier would change the bits of a token beside others."""
    weights = sum(array.nbytes for _, array in tree_flatten(model.parameters()))
    for light_bytes, most in ((weights, parts.MANY_TOKENS), (weights - 1, parts.FEW_TOKENS)):
        monkeypatch.setattr(parts, "LIGHT_BYTES", light_bytes)
        taken = take_parts(model)
        assert taken is not None
        found = {taken.head.most_tokens}
        for layer in taken.layers:
            for product in (layer.qkv, layer.out, layer.gate_up, layer.down):
                found.add(product.most_tokens)
        assert found == {most}


def test_joined_weights_are_held_once(model: Any) -> None:
    first = take_parts(model)
    assert first is not None
    attention = model.layers[0].self_attn
    rows = attention.q_proj.weight.shape[0]
    np.testing.assert_array_equal(
        np.array(first.layers[0].qkv.weight[:rows]), np.array(attention.q_proj.weight)
    )
    del first, attention
    mx.clear_cache()
    before = mx.get_active_memory()
    held = take_parts(model)
    mx.clear_cache()
    assert held is not None
    assert mx.get_active_memory() - before < 10_000


def quantised() -> Any:
    model = small_llama()
    nn.quantize(model, group_size=64, bits=4)
    return model


OTHERS = {
    "interleaved rotation": lambda: small_llama(rope_traditional=True),
    "heads of a size without a kernel": lambda: small_llama(head_dim=32),
    "a sliding window": lambda: small_llama(
        layer_types=["full_attention", "sliding_attention"], sliding_window=8
    ),
    "packed weights": quantised,
    "inputs that do not fill a tile": lambda: small_llama(intermediate_size=200),
}


@pytest.mark.parametrize("build", OTHERS.values(), ids=OTHERS)
def test_a_model_the_kernels_do_not_know_has_no_parts(build: Any) -> None:
    assert take_parts(build()) is None


def test_another_architecture_has_no_parts() -> None:
    assert take_parts(nn.Linear(4, 4)) is None
