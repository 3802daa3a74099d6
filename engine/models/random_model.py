"""A small model of seeded random weights that talks bytes and opens a reasoning block.

It writes nonsense, at once and the same on every machine: a second model for every matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engine.models.convert import write_json
from engine.models.vocabulary import BYTE_TO_CHAR

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
THINKING = ("<think>", "</think>")
"""Ordinary added tokens, as in models that reason: their text is part of what is written."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\\n<think>\\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}"
    "{{ '\\n</think>\\n\\n' }}"
    "{% endif %}{% endif %}"
)

LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM = 2, 64, 128, 4, 2, 16
CONTEXT = 8192
HEAD_SCALE = 0.5
"""Spreads the scores (deviation 4): greedy choices are clear ones, and end tokens do occur."""


def write_random_model(
    seed: int,
    folder: Path,
    dtype: str,
    *,
    added: Sequence[str] = THINKING,
    chat_template: str = CHAT_TEMPLATE,
) -> None:
    """Write a folder that MLX-LM loads; equal seeds give equal weights.

    Args:
        folder: an existing folder.
        dtype: name of the float type the weights are stored in.
        added: texts that are one token each, and part of what is written.
    """
    backend = _byte_tokenizer(added)
    ids = backend.get_vocab(with_added_tokens=True)
    eos_ids = [ids["<|im_end|>"], ids["<|endoftext|>"]]
    config = _config(backend.get_vocab_size(), eos_ids, dtype)
    backend.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", _settings(chat_template))
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", {"eos_token_id": eos_ids})
    arrays = _weights(np.random.default_rng(seed), backend.get_vocab_size())
    kind = getattr(mx, dtype)
    weights = {name: mx.array(values).astype(kind) for name, values in arrays.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})


def _byte_tokenizer(added: Sequence[str]) -> Tokenizer:
    texts = [BYTE_TO_CHAR[byte] for byte in range(256)]
    backend = Tokenizer(models.BPE({text: index for index, text in enumerate(texts)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIAL])
    backend.add_tokens([AddedToken(text, normalized=False) for text in added])
    return backend


def _settings(chat_template: str) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": chat_template,
    }


def _config(vocab_size: int, eos_ids: list[int], dtype: str) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": CONTEXT,
        "vocab_size": vocab_size,
        "tie_word_embeddings": False,
        "eos_token_id": eos_ids,
        "torch_dtype": dtype,
    }


def _weights(draw: np.random.Generator, vocab_size: int) -> dict[str, np.ndarray]:
    def matrix(rows: int, columns: int, scale: float) -> np.ndarray:
        return (draw.standard_normal((rows, columns)) * scale).astype(np.float32)

    ones = np.ones(HIDDEN, dtype=np.float32)
    query, key = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    found = {
        "model.embed_tokens.weight": matrix(vocab_size, HIDDEN, 1.0),
        "model.norm.weight": ones,
        "lm_head.weight": matrix(vocab_size, HIDDEN, HEAD_SCALE),
    }
    for layer in range(LAYERS):
        found |= {
            f"model.layers.{layer}.{name}": values
            for name, values in {
                "input_layernorm.weight": ones,
                "self_attn.q_proj.weight": matrix(query, HIDDEN, HIDDEN**-0.5),
                "self_attn.k_proj.weight": matrix(key, HIDDEN, HIDDEN**-0.5),
                "self_attn.v_proj.weight": matrix(key, HIDDEN, HIDDEN**-0.5),
                "self_attn.o_proj.weight": matrix(HIDDEN, query, query**-0.5),
                "post_attention_layernorm.weight": ones,
                "mlp.gate_proj.weight": matrix(INNER, HIDDEN, HIDDEN**-0.5),
                "mlp.up_proj.weight": matrix(INNER, HIDDEN, HIDDEN**-0.5),
                "mlp.down_proj.weight": matrix(HIDDEN, INNER, INNER**-0.5),
            }.items()
        }
    return found
