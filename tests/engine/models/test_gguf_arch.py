"""A GGUF's parts get MLX-LM's names and settings, or the file is refused in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import ModelError
from engine.models.gguf import read_gguf
from engine.models.gguf_arch import model_config, parts

Build = Callable[..., Path]


def check(path: Path) -> None:
    file = read_gguf(path)
    parts(file, model_config(file))


def test_the_config_is_the_one_the_file_describes(build_gguf: Build) -> None:
    config = model_config(read_gguf(build_gguf()))
    assert config["rms_norm_eps"] == pytest.approx(1e-5)
    del config["rms_norm_eps"]
    assert config == {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 9,
        "intermediate_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "max_position_embeddings": 512,
        "vocab_size": 262,
        "tie_word_embeddings": True,
    }


def test_a_head_of_its_own_unties_the_embedding(build_gguf: Build) -> None:
    file = read_gguf(build_gguf(tensors={"output.weight": np.ones((262, 64), np.float32)}))
    config = model_config(file)
    assert not config["tie_word_embeddings"]
    assert "lm_head.weight" in {part.target for part in parts(file, config)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param({"architecture": "mamba"}, r"'mamba' is not supported .*llama", id="kind"),
        pytest.param(
            {"tensors": {"blk.3.attn_k.weight": None}},
            r"'blk\.3\.attn_k\.weight' is missing",
            id="missing-tensor",
        ),
        pytest.param(
            {"tensors": {"token_embd.weight": None}},
            r"'token_embd\.weight' is missing",
            id="missing-embedding",
        ),
        pytest.param(
            {"tensors": {"blk.0.ffn_up.weight": np.ones((64, 64), np.float32)}},
            r"'blk\.0\.ffn_up\.weight' has the shape \(64, 64\), .*\(256, 64\)",
            id="shape",
        ),
        pytest.param(
            {"tensors": {"blk.0.attn_q.bias": np.ones(64, np.float32)}},
            r"'blk\.0\.attn_q\.bias' is not part of a llama model",
            id="unexpected-tensor",
        ),
        pytest.param(
            {"settings": {"llama.block_count": 2**32 - 1}},
            "4294967295 layers announced, 9 found",
            id="absurd-layer-count",
        ),
        pytest.param(
            {"settings": {"llama.attention.head_count": 0}}, "head_count is 0", id="no-heads"
        ),
        pytest.param(
            {"settings": {"llama.embedding_length": None}},
            r"'llama\.embedding_length' is missing",
            id="missing-setting",
        ),
        pytest.param({"settings": {"llama.expert_count": 8}}, "mixture-of-experts", id="experts"),
        pytest.param(
            {"settings": {"llama.rope.dimension_count": 8}},
            "8 of 16 rotary dimensions",
            id="partial-rotary",
        ),
    ],
)
def test_what_cannot_be_a_known_model_is_refused_in_one_line(
    build_gguf: Build, change: dict[str, Any], said: str
) -> None:
    path = build_gguf(**change)
    with pytest.raises(ModelError, match=said) as caught:
        check(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert ";" in str(caught.value), "the remedy is missing"
