"""A converted GGUF is a folder MLX-LM loads, and computes what the original weights compute."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from mlx.utils import tree_flatten

from engine.models.convert import SHARD_LAYERS, convert_gguf

Build = Callable[..., Path]
Pack = Callable[[int, int, str], Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "converted"
    made.mkdir()
    return made


def loaded_arrays(folder: Path) -> dict[str, mx.array]:
    model, _ = mlx_lm.load(str(folder))
    return dict(tree_flatten(model.parameters()))


def test_every_array_is_the_one_that_was_stored(
    build_gguf: Build, folder: Path, weights: dict[str, np.ndarray]
) -> None:
    convert_gguf(build_gguf(), folder, "float32")
    found = loaded_arrays(folder)
    assert found.keys() == weights.keys()
    for name, array in found.items():
        np.testing.assert_array_equal(np.array(array), weights[name], err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weights_are_stored_in_the_dtype_asked_for(
    build_gguf: Build, folder: Path, dtype: str
) -> None:
    convert_gguf(build_gguf(kind="Q8_0"), folder, dtype)
    assert {array.dtype for array in loaded_arrays(folder).values()} == {getattr(mx, dtype)}


def test_mixed_types_with_k_quants_convert(build_gguf: Build, folder: Path, packed: Pack) -> None:
    tensors = {"blk.0.ffn_down.weight": packed(64, 256, "Q4_K")}
    convert_gguf(build_gguf(kind="Q8_0", tensors=tensors), folder, "float32")
    model, tokenizer = mlx_lm.load(str(folder))
    assert mx.isfinite(model(mx.array([tokenizer.encode("the")]))).all().item()


def test_the_first_file_is_the_model_cut_after_eight_layers(
    build_gguf: Build, folder: Path
) -> None:
    convert_gguf(build_gguf(), folder, "float32")
    places = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    first = {name for name, file in places.items() if file.startswith("model-00001-of-00002")}
    layers = {name.split(".")[2] for name in first if ".layers." in name}
    assert layers == {str(layer) for layer in range(SHARD_LAYERS)}
    assert {"model.embed_tokens.weight", "model.norm.weight"} <= first


def test_end_tokens_are_in_every_place_that_names_them(build_gguf: Build, folder: Path) -> None:
    convert_gguf(build_gguf(), folder, "float32")
    for name in ("config.json", "generation_config.json"):
        assert json.loads((folder / name).read_text())["eos_token_id"] == [2, 0]


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_qwen_files_keep_their_row_order_and_their_own_arrays(
    build_gguf: Build, folder: Path, kind: str
) -> None:
    extra = {
        "qwen2": {"attn_q.bias": 64, "attn_k.bias": 32, "attn_v.bias": 32},
        "qwen3": {"attn_q_norm.weight": 16, "attn_k_norm.weight": 16},
    }[kind]
    query = np.arange(64 * 64, dtype=np.float32).reshape(64, 64) / 4096
    tensors = {
        f"blk.{layer}.{name}": np.full(size, layer + 1, np.float32)
        for layer in range(9)
        for name, size in extra.items()
    }
    path = build_gguf(
        architecture=kind,
        settings=settings_of(kind),
        tensors={**tensors, "blk.0.attn_q.weight": query},
    )
    convert_gguf(path, folder, "float32")
    found = loaded_arrays(folder)
    np.testing.assert_array_equal(np.array(found["model.layers.0.self_attn.q_proj.weight"]), query)
    name = "self_attn.q_proj.bias" if kind == "qwen2" else "self_attn.q_norm.weight"
    assert set(np.array(found[f"model.layers.4.{name}"]).tolist()) == {5.0}


def settings_of(kind: str) -> dict[str, Any]:
    return {
        f"{kind}.block_count": 9,
        f"{kind}.context_length": 512,
        f"{kind}.embedding_length": 64,
        f"{kind}.feed_forward_length": 256,
        f"{kind}.attention.head_count": 4,
        f"{kind}.attention.head_count_kv": 2,
        f"{kind}.attention.key_length": 16,
        f"{kind}.rope.freq_base": 1000000.0,
        f"{kind}.attention.layer_norm_rms_epsilon": 1e-6,
        "tokenizer.ggml.pre": "qwen2",
    }
