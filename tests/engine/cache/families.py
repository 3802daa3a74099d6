"""Small models of seeded random weights, one of each kind of layer that slots carry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from engine.models.load import LoadedModel
from engine.plan import RowRange
from engine.testing import tiny_model

WINDOW = 8
LENGTHS = (3, WINDOW + 1, 3 * WINDOW + 2)
NUM_DRAFTS = 3
EMITTED = 20

DENSE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "head_dim": 32,
}

SETTINGS: dict[str, dict[str, Any]] = {
    "llama": {**DENSE, "num_hidden_layers": 2},
    "gemma2": {**DENSE, "num_hidden_layers": 2, "query_pre_attn_scalar": 32},
    "gemma3_text": {
        **DENSE,
        "num_hidden_layers": 3,
        "sliding_window": WINDOW,
        "sliding_window_pattern": 3,
    },
    "ministral3": {
        **DENSE,
        "num_hidden_layers": 2,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention"],
        "max_position_embeddings": 4096,
        "rope_parameters": {
            "rope_theta": 10000.0,
            "rope_type": "default",
            "llama_4_scaling_beta": 0.1,
            "original_max_position_embeddings": 16,
        },
    },
    "gpt_oss": {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": WINDOW,
    },
    "gpt2": {
        "n_ctx": 512,
        "n_embd": 32,
        "n_head": 4,
        "n_layer": 1,
        "n_positions": 512,
        "layer_norm_epsilon": 1e-5,
    },
    "mamba2": {
        "num_heads": 4,
        "head_dim": 16,
        "hidden_size": 32,
        "intermediate_size": 64,
        "state_size": 16,
        "num_hidden_layers": 2,
        "layer_norm_epsilon": 1e-5,
        "conv_kernel": 4,
        "n_groups": 2,
        "use_bias": False,
        "use_conv_bias": True,
        "tie_word_embeddings": False,
        "time_step_limit": (0.0, float("inf")),
        "time_step_rank": 2,
    },
    "qwen3_next": {
        **DENSE,
        "num_hidden_layers": 3,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_conv_kernel_dim": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "shared_expert_intermediate_size": 32,
        "mlp_only_layers": [0],
        "moe_intermediate_size": 32,
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "max_position_embeddings": 4096,
        "full_attention_interval": 3,
    },
    "falcon_h1": {
        **DENSE,
        "num_hidden_layers": 2,
        "mamba_d_conv": 4,
        "mamba_d_head": 16,
        "mamba_d_ssm": 64,
        "mamba_d_state": 16,
        "mamba_n_groups": 1,
        "mamba_n_heads": 4,
        "rope_theta": 10000.0,
        "lm_head_multiplier": 1.0,
        "tie_word_embeddings": False,
    },
    "lfm2": {
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": 32,
        "block_ff_dim": 64,
        "block_multiple_of": 8,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "full_attn_idxs": [1],
        "rope_theta": 10000.0,
    },
    "mamba": {
        "hidden_size": 16,
        "intermediate_size": 32,
        "state_size": 4,
        "num_hidden_layers": 1,
        "conv_kernel": 4,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_rank": 2,
    },
    "nemotron_h": {
        **DENSE,
        "max_position_embeddings": 4096,
        "attention_bias": False,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "mamba_proj_bias": False,
        "ssm_state_size": 16,
        "conv_kernel": 4,
        "n_groups": 2,
        "mlp_bias": False,
        "layer_norm_epsilon": 1e-5,
        "use_bias": False,
        "use_conv_bias": True,
        "hybrid_override_pattern": ["M", "-", "*", "-"],
    },
}

ATTENTION = ("llama", "gemma2", "gemma3_text", "ministral3", "gpt_oss")
RECURRENT = ("mamba2", "qwen3_next", "falcon_h1", "lfm2")
CARRIED = (*ATTENTION, *RECURRENT)


def rows_at(starts: Iterable[int], counts: Iterable[int]) -> RowRange:
    """Rows from slot 0, without adapters."""
    starts = tuple(starts)
    return RowRange(0, starts, tuple(counts), adapters=(0,) * len(starts))


def padded(rows: Sequence[Sequence[int]], width: int) -> mx.array:
    """Ids of some rows, padded to `width`."""
    return mx.array([[*row, *[5] * (width - len(row))] for row in rows])


@cache
def family(name: str, seed: int = 3) -> LoadedModel:
    """Return a model of mlx-lm's architecture `name` that speaks the tiny model's tokens."""
    module = import_module(f"mlx_lm.models.{name}")
    args = module.ModelArgs.from_dict(
        {"model_type": name, "vocab_size": tiny_model().vocab_size, **SETTINGS[name]}
    )
    mx.random.seed(seed)
    model = module.Model(args)
    model.eval()
    mx.eval(model.parameters())
    return replace(
        tiny_model(),
        name=name,
        model=model,
        num_layers=len(model.layers),
        config={"model_type": name},
        path=None,
    )


def prompts() -> list[tuple[int, ...]]:
    """Three prompts: one below the window, two past it."""
    return [tuple(33 + (7 * i * i + length) % 60 for i in range(length)) for length in LENGTHS]


@cache
def truth(name: str, prompt: tuple[int, ...], count: int = EMITTED + NUM_DRAFTS + 1) -> list[int]:
    """Greedy ids of a row alone, one token a forward, in mlx-lm's own cache."""
    model = family(name).model
    caches, fed, emitted = make_prompt_cache(model), list(prompt), []
    for _ in range(count):
        token = int(mx.argmax(model(mx.array([fed]), cache=caches)[0, -1]))
        emitted.append(token)
        fed = [token]
    return emitted
