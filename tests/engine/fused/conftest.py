"""Small random models of every architecture the fused step knows."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import llama, qwen2, qwen3

SIZES = {
    "hidden_size": 192,
    "num_hidden_layers": 2,
    "intermediate_size": 256,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 320,
}
SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def small_llama(**changes: Any) -> Any:
    args = {"model_type": "llama", "head_dim": 64, "max_position_embeddings": 512} | SIZES
    return randomised(llama.Model(llama.ModelArgs(**(args | changes))))


def small_qwen2() -> Any:
    args = SIZES | {"model_type": "qwen2", "hidden_size": 384, "max_position_embeddings": 512}
    return randomised(qwen2.Model(qwen2.ModelArgs(**args)))


def small_qwen3() -> Any:
    args = SIZES | {
        "model_type": "qwen3",
        "head_dim": 64,
        "rope_theta": 1e6,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
    }
    return randomised(qwen3.Model(qwen3.ModelArgs(**args)))


def randomised(model: Any) -> Any:
    """Give norms and biases values that matter too."""
    mx.random.seed(3)
    for _, module in model.named_modules():
        for name in ("weight", "bias"):
            if name in module:
                module[name] = module[name] + 0.05 * mx.random.normal(module[name].shape)
    mx.eval(model.parameters())
    return model


MODELS = {
    "llama": small_llama,
    "llama with biases, scaled rotation and its own head": lambda: small_llama(
        attention_bias=True, mlp_bias=True, tie_word_embeddings=False, rope_scaling=SCALING
    ),
    "qwen2": small_qwen2,
    "qwen3": small_qwen3,
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    return MODELS[request.param]()
