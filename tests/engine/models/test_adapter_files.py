"""Adapters of MLX-LM and PEFT are read to the same sums; anything odd is refused in one line."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.tuner.utils import load_adapters as load_with_mlx_lm

from engine.errors import ModelError
from engine.models.adapter_files import read_adapter
from engine.models.layer_tree import exchange_layers
from engine.models.lora import load_adapters
from engine.models.merge import merge_adapter
from engine.testing import tiny_model, write_adapter

Q0 = "model.layers.0.self_attn.q_proj"
HIDDEN = 64


def write_mlx(folder: Path, weights: dict[str, mx.array], **config: Any) -> Path:
    """An adapter folder as MLX-LM writes it."""
    values = {
        "fine_tune_type": "lora",
        "num_layers": 2,
        "lora_parameters": {"rank": 2, "scale": 3.0, "dropout": 0.0},
    }
    (folder / "adapter_config.json").write_text(json.dumps(values | config))
    mx.save_safetensors(str(folder / "adapters.safetensors"), weights)
    return folder


def write_peft(folder: Path, weights: dict[str, mx.array], **config: Any) -> Path:
    """An adapter folder as PEFT writes it."""
    values = {
        "peft_type": "LORA",
        "r": 2,
        "lora_alpha": 6,
        "target_modules": ["q_proj"],
        "use_rslora": False,
        "bias": "none",
        "modules_to_save": None,
        "use_dora": False,
        "init_lora_weights": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(values | config))
    mx.save_safetensors(str(folder / "adapter_model.safetensors"), weights)
    return folder


def halves(rank: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Random [rank, in] and [rank, out] for a square layer."""
    draw = np.random.default_rng(7)
    down, up = draw.standard_normal((2, rank, HIDDEN)).astype(np.float32)
    return down, up


def mlx_weights(path: str = Q0) -> dict[str, mx.array]:
    down, up = halves()
    return {f"{path}.lora_a": mx.array(down.T), f"{path}.lora_b": mx.array(up)}


def peft_weights(path: str = Q0) -> dict[str, mx.array]:
    down, up = halves()
    name = f"base_model.model.{path}"
    return {f"{name}.lora_A.weight": mx.array(down), f"{name}.lora_B.weight": mx.array(up.T)}


@pytest.mark.parametrize(
    ("write", "weights", "config", "scale"),
    [
        (write_mlx, mlx_weights, {}, 3.0),
        (write_peft, peft_weights, {}, 3.0),
        (write_peft, peft_weights, {"use_rslora": True}, 6 / math.sqrt(2)),
    ],
    ids=["mlx-lm", "peft", "peft, rank-stabilised"],
)
def test_a_layers_sum_is_the_scale_times_both_halves(
    tmp_path: Path, write: Callable[..., Path], weights: Callable[[], Any], config: Any, scale: Any
) -> None:
    adapter = read_adapter("a", write(tmp_path, weights(), **config))

    down, up = halves()
    pair = adapter.layers[Q0]
    assert set(adapter.layers) == {Q0}
    np.testing.assert_allclose(np.array(pair.up.T @ pair.down), scale * up.T @ down, rtol=1e-5)


@pytest.mark.parametrize("apply", ["per row", "merged"])
def test_scores_are_those_of_mlx_lm_with_the_same_folder(tmp_path: Path, apply: str) -> None:
    model = tiny_model()
    folder = write_adapter(tmp_path / "a", model, layers=("q_proj", "o_proj", "up_proj"))
    theirs = load_with_mlx_lm(exchange_layers(model.model, {}), str(folder))
    ids = mx.array([[5, 80, 91, 7]])

    if apply == "merged":
        ours = merge_adapter(model, folder).model
    else:
        adapters = load_adapters(model, {"a": folder})
        adapters.select([1])
        ours = adapters.model.model

    np.testing.assert_allclose(np.array(ours(ids)), np.array(theirs(ids)), atol=1e-5, rtol=1e-5)


def test_half_precision_files_are_read_to_float32(tmp_path: Path) -> None:
    weights = {name: array.astype(mx.bfloat16) for name, array in mlx_weights().items()}

    pair = read_adapter("a", write_mlx(tmp_path, weights)).layers[Q0]

    assert {pair.down.dtype, pair.up.dtype} == {mx.float32}


NAN = float("nan")
BAD_MLX_CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "DoRA": ({"fine_tune_type": "dora"}, "fine_tune_type is 'dora'"),
    "full": ({"fine_tune_type": "full"}, "fine_tune_type is 'full'"),
    "kind no text": ({"fine_tune_type": [[]]}, "fine_tune_type is a list of 1"),
    "no object": ({"lora_parameters": 5}, "lora_parameters is 5, no object"),
    "no scale": ({"lora_parameters": {"rank": 2, "alpha": 4}}, "scale is None"),
    "NaN scale": ({"lora_parameters": {"rank": 2, "scale": NAN}}, "scale is nan"),
    "endless scale": ({"lora_parameters": {"rank": 2, "scale": 1e39}}, r"scale is 1e\+39"),
    "big scale": ({"lora_parameters": {"rank": 2, "scale": 10**400}}, "scale is 1000"),
    "overflow": ({"lora_parameters": {"rank": 2, "scale": 3e38}}, "not finite in float32"),
    "text scale": ({"lora_parameters": {"rank": 2, "scale": "3"}}, "scale is '3'"),
    "true scale": ({"lora_parameters": {"rank": 2, "scale": True}}, "scale is True"),
    "no rank": ({"lora_parameters": {"scale": 1.0}}, "rank is None"),
    "rank 0": ({"lora_parameters": {"rank": 0, "scale": 1.0}}, "rank is 0"),
    "rank 2.0": ({"lora_parameters": {"rank": 2.0, "scale": 1.0}}, r"rank is 2\.0"),
    "rank true": ({"lora_parameters": {"rank": True, "scale": 1.0}}, "rank is True"),
    "other rank": ({"lora_parameters": {"rank": 3, "scale": 1.0}}, "the rank 3"),
}


@pytest.mark.parametrize("name", BAD_MLX_CONFIGS)
def test_an_mlx_lm_config_that_is_not_carried_is_refused(tmp_path: Path, name: str) -> None:
    config, message = BAD_MLX_CONFIGS[name]
    refused(write_mlx(tmp_path, mlx_weights(), **config), message)


BAD_PEFT_CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "another method": ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
    "method no text": ({"peft_type": {}}, "peft_type is a dict of 0"),
    "DoRA": ({"use_dora": True}, "use_dora is True"),
    "bias": ({"bias": "lora_only"}, "bias is 'lora_only'"),
    "its own bias": ({"lora_bias": True}, "lora_bias is True"),
    "whole layers": ({"modules_to_save": ["lm_head"]}, "modules_to_save is a list of 1"),
    "tokens": ({"trainable_token_indices": [1]}, "trainable_token_indices is a list of 1"),
    "ranks by layer": ({"rank_pattern": {"q_proj": 4}}, "rank_pattern is a dict of 1"),
    "alphas by layer": ({"alpha_pattern": {"q_proj": 4}}, "alpha_pattern is a dict of 1"),
    "changed base": ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa'"),
    "transposed": ({"fan_in_fan_out": True}, "fan_in_fan_out is True"),
    "repeated layers": ({"layer_replication": [[0, 1]]}, "layer_replication is a list of 1"),
    "no rank": ({"r": None}, "r is None"),
    "NaN alpha": ({"lora_alpha": NAN}, "lora_alpha is nan"),
    "scaling no flag": ({"use_rslora": "yes"}, "use_rslora is 'yes'"),
}


@pytest.mark.parametrize("name", BAD_PEFT_CONFIGS)
def test_a_peft_config_that_is_not_carried_is_refused(tmp_path: Path, name: str) -> None:
    config, message = BAD_PEFT_CONFIGS[name]
    refused(write_peft(tmp_path, peft_weights(), **config), message)


BAD_TEXTS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "no valid JSON"),
    "no JSON": (b"{", "no valid JSON"),
    "no UTF-8": (b'{"a": "\xff"}', "no valid JSON"),
    "deep": (b"[" * 100_000, "no valid JSON"),
    "nested value": (b'{"peft_type": ' + b"[" * 900 + b"]" * 900 + b"}", "peft_type is a list"),
    "long number": (b'{"r": ' + b"9" * 10_000 + b"}", "no valid JSON"),
    "list": (b"[]", "no JSON object"),
    "huge": (b" " * (2**20 + 1), "more than 1048576 bytes"),
    "unknown kind": (b"{}", "neither lora_parameters nor peft_type"),
}


@pytest.mark.parametrize("name", BAD_TEXTS)
def test_a_config_that_is_no_config_is_refused(tmp_path: Path, name: str) -> None:
    text, message = BAD_TEXTS[name]
    (write_mlx(tmp_path, mlx_weights()) / "adapter_config.json").write_bytes(text)
    refused(tmp_path, message)


def changed(**others: mx.array) -> dict[str, mx.array]:
    """The good weights with some replaced or added; names are under q_proj of layer 0."""
    return mlx_weights() | {f"{Q0}.{name}": array for name, array in others.items()}


BAD_MLX_WEIGHTS: dict[str, tuple[dict[str, mx.array], str]] = {
    "half a pair": ({f"{Q0}.lora_a": mx.ones((64, 2))}, "has no lora_b"),
    "other half": ({f"{Q0}.lora_b": mx.ones((2, 64))}, "has no lora_a"),
    "none": ({}, "no LoRA weights"),
    "DoRA magnitude": (changed(m=mx.ones((64,))), "q_proj.m' is no LoRA weight"),
    "whole weight": (changed(weight=mx.ones((64, 64))), "q_proj.weight' is no LoRA weight"),
    "three axes": (changed(lora_a=mx.ones((1, 64, 2))), "shape"),
    "one axis": (changed(lora_a=mx.ones((64,))), "shape"),
    "turned": (changed(lora_a=mx.ones((2, 64))), "the rank 2"),
    "whole numbers": (changed(lora_a=mx.ones((64, 2), dtype=mx.int32)), "dtype 'I32'"),
    "NaN": (changed(lora_a=mx.full((64, 2), NAN)), "not finite"),
    "infinite": (changed(lora_b=mx.full((2, 64), math.inf)), "not finite"),
    "PEFT's names": (peft_weights(), "is no LoRA weight"),
    "two lines": ({"a\nb.lora_c": mx.ones((2, 2))}, r"a\\nb"),
}


@pytest.mark.parametrize("name", BAD_MLX_WEIGHTS)
def test_weights_that_are_not_plain_pairs_are_refused(tmp_path: Path, name: str) -> None:
    weights, message = BAD_MLX_WEIGHTS[name]
    refused(write_mlx(tmp_path, weights), message)


def entry(**changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]} | changes


BAD_HEADERS: dict[str, tuple[Any, str]] = {
    "list": ([], "damaged safetensors header"),
    "text offsets": ({"a": entry(data_offsets=["0", "16"])}, "damaged safetensors header"),
    "negative offsets": ({"a": entry(data_offsets=[-16, 0])}, "damaged safetensors header"),
    "three offsets": ({"a": entry(data_offsets=[0, 8, 16])}, "damaged safetensors header"),
    "beyond the end": ({"a": entry(data_offsets=[0, 2**40])}, "its header says"),
    "bigger shape": ({"a": entry(shape=[2**20, 2**20])}, "16 bytes for shape"),
    "bigger shape, odd name": ({"_a": entry(shape=[2**20, 2**20])}, "16 bytes for shape"),
    "negative shape": ({"a": entry(shape=[-2, -2])}, "has shape"),
    "shape no list": ({"a": entry(shape="22")}, "has shape '22'"),
    "no dtype": ({"a": {"data_offsets": [0, 16]}}, "dtype None"),
    "dtype no text": ({"a": entry(dtype=[])}, "dtype a list of 0"),
}


@pytest.mark.parametrize("name", BAD_HEADERS)
def test_a_weights_file_that_lies_about_itself_is_refused(tmp_path: Path, name: str) -> None:
    header, message = BAD_HEADERS[name]
    text = json.dumps(header).encode()
    write_mlx(tmp_path, mlx_weights())
    (tmp_path / "adapters.safetensors").write_bytes(
        len(text).to_bytes(8, "little") + text + bytes(16)
    )
    refused(tmp_path, message)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = write_mlx(tmp_path, mlx_weights()) / "adapters.safetensors"
    whole = path.read_bytes()
    for length in range(0, len(whole), 13):
        path.write_bytes(whole[:length])
        refused(tmp_path, r"adapters\.safetensors: ")


def test_a_missing_folder_and_pickled_weights_are_refused(tmp_path: Path) -> None:
    refused(tmp_path / "none", "cannot be read .* name a folder")
    (write_peft(tmp_path, peft_weights()) / "adapter_model.safetensors").rename(
        tmp_path / "adapter_model.bin"
    )
    refused(tmp_path, "no pickled weights")


BAD_LAYERS: dict[str, tuple[str, tuple[int, int], str]] = {
    "no such block": ("model.layers.9.self_attn.q_proj", (64, 64), "none of this model's"),
    "below a layer": (f"{Q0}.weight", (64, 64), "none of this model's"),
    "root": ("", (64, 64), "is of type Model; fm carries LoRA on linear layers"),
    "embedding": ("model.embed_tokens", (261, 64), "is of type .*Embedding"),
    "norm": ("model.norm", (64, 64), "is of type RMSNorm"),
    "block": ("model.layers.0.mlp", (64, 64), "is of type MLP"),
    "other inputs": (Q0, (32, 64), r"\[64, 64\] and the adapter is for \[64, 32\]"),
    "other outputs": (Q0, (64, 32), r"\[64, 64\] and the adapter is for \[32, 64\]"),
}


@pytest.mark.parametrize("name", BAD_LAYERS)
def test_an_adapter_that_does_not_fit_the_model_is_refused(tmp_path: Path, name: str) -> None:
    path, (inputs, outputs), message = BAD_LAYERS[name]
    weights = {f"{path}.lora_a": mx.ones((inputs, 2)), f"{path}.lora_b": mx.ones((2, outputs))}
    folder = write_mlx(tmp_path, weights)
    for load in (lambda: load_adapters(tiny_model(), {"a": folder}), lambda: merged(folder)):
        with pytest.raises(ModelError, match=message) as caught:
            load()
        assert "\n" not in str(caught.value)


def merged(folder: Path) -> None:
    merge_adapter(tiny_model(), folder)


def refused(folder: Path, message: str) -> None:
    """The folder is refused in one line that holds `message`."""
    with pytest.raises(ModelError, match=message) as caught:
        read_adapter("a", folder)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600 + 2 * len(str(folder))
