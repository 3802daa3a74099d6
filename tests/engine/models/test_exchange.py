"""One model's layers call our functions; mlx-lm and its other models do not."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models import activations, base, gemma3_text, llama

from engine.models.exchange import VECTOR_MATH, exchange_functions

ARGS: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 300,
}


def tiny_llama() -> nn.Module:
    mx.random.seed(0)
    return llama.Model(llama.ModelArgs.from_dict(ARGS))


def spies(calls: list[str]) -> dict[Any, Any]:
    def swiglu(gate: mx.array, x: mx.array) -> mx.array:
        calls.append("swiglu")
        return activations.swiglu(gate, x)

    def attention(*args: Any, **settings: Any) -> mx.array:
        calls.append("attention")
        return base.scaled_dot_product_attention(*args, **settings)

    return {activations.swiglu: swiglu, base.scaled_dot_product_attention: attention}


def test_every_layer_of_the_model_calls_ours_and_of_no_other_model() -> None:
    model, other = tiny_llama(), tiny_llama()
    ids, calls = mx.array([[1, 2, 3]]), list[str]()
    exchange_functions(model, spies(calls))

    ours = model(ids)
    assert calls == ["attention", "swiglu"] * 2
    assert mx.array_equal(other(ids), ours)
    assert calls == ["attention", "swiglu"] * 2
    assert llama.swiglu is activations.swiglu


def test_layers_keep_their_names_kinds_and_arrays() -> None:
    model = tiny_llama()
    before = {name: (type(module), module) for name, module in model.named_modules()}
    exchange_functions(model, VECTOR_MATH)
    for name, module in model.named_modules():
        kind, was = before[name]
        assert module is was
        assert isinstance(module, kind)
        assert type(module).__name__ == kind.__name__
        assert type(module).__module__ == kind.__module__


def test_a_layer_that_calls_none_of_them_keeps_its_class() -> None:
    model = tiny_llama()
    exchange_functions(model, VECTOR_MATH)
    assert type(model) is llama.Model
    assert type(model.model.layers[0].mlp.gate_proj) is nn.Linear


@pytest.mark.parametrize("extent", [3, 400])
def test_a_windowed_model_with_other_activations_computes_as_before(extent: int) -> None:
    mx.random.seed(0)
    windows = {"sliding_window": 100, "sliding_window_pattern": 2}
    args = {**ARGS, "model_type": "gemma3_text", "head_dim": 16, **windows}
    model = gemma3_text.Model(gemma3_text.ModelArgs.from_dict(args))
    ids = mx.arange(extent)[None] % 300
    before = model(ids)
    exchange_functions(model, VECTOR_MATH)
    assert mx.allclose(model(ids), before, atol=1e-4)
