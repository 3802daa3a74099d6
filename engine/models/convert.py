"""Turning a GGUF file into a folder that MLX-LM loads, once per compute dtype."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import mlx.core as mx

from engine.models.gguf import read_gguf
from engine.models.gguf_arch import LAYER, Part, model_config, parts
from engine.models.gguf_tokenizer import build_tokenizer
from engine.models.gguf_weights import WeightReader, open_weights, read_part

SHARD_LAYERS = 8
"""Layers a weights file holds; the first one also takes the embedding, final norm and head, so
that a model cut after eight layers is that one file."""


def convert_gguf(source: Path, folder: Path, dtype: str) -> None:
    """Write config.json, generation_config.json, tokenizer files and weights into `folder`.

    Holds the packed weights and one shard of dequantised ones at a time. Waits for the device.

    Args:
        source: a GGUF file.
        folder: an existing folder.
        dtype: name of the float type the weights are stored in.

    Raises:
        ModelError: the file is damaged, or of a kind that cannot be read.
        OSError: `folder` has no room, or cannot be written.
    """
    file = read_gguf(source)
    config = model_config(file)
    wanted = parts(file, config)
    tokenizer = build_tokenizer(file, config["vocab_size"])
    reader = open_weights(file)
    eos_ids = list(tokenizer.eos_ids)
    kind: mx.Dtype = getattr(mx, dtype)
    _check_space(folder, sum(prod(part.shape) for part in wanted) * kind.size)
    tokenizer.save(folder)
    write_json(folder / "config.json", {**config, "eos_token_id": eos_ids, "torch_dtype": dtype})
    write_json(folder / "generation_config.json", {"eos_token_id": eos_ids})
    _write_shards(folder, list(_shards(wanted)), reader, kind)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON file with a stable layout."""
    path.write_text(json.dumps(values, indent=1, sort_keys=True) + "\n")


def _check_space(folder: Path, num_bytes: int) -> None:
    if shutil.disk_usage(folder).free < num_bytes:
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} for {num_bytes} bytes", folder)


def _save(path: Path, arrays: dict[str, mx.array]) -> None:
    try:
        mx.save_safetensors(str(path), arrays, metadata={"format": "mlx"})
    except RuntimeError as error:
        raise OSError(errno.EIO, str(error), path) from error


def _shards(wanted: list[Part]) -> Iterator[list[Part]]:
    groups: dict[int, list[Part]] = {}
    for part in wanted:
        layer = LAYER.fullmatch(part.source)
        groups.setdefault(int(layer[1]) // SHARD_LAYERS if layer else 0, []).append(part)
    return iter(groups.values())


def _write_shards(
    folder: Path, shards: list[list[Part]], reader: WeightReader, dtype: mx.Dtype
) -> None:
    places: dict[str, str] = {}
    total = 0
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        arrays = {part.target: read_part(reader, part).astype(dtype) for part in shard}
        _save(folder / name, arrays)
        total += sum(array.nbytes for array in arrays.values())
        places |= dict.fromkeys(arrays, name)
        del arrays
        mx.clear_cache()
    write_json(
        folder / "model.safetensors.index.json",
        {"metadata": {"total_size": total}, "weight_map": places},
    )
