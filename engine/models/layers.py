"""A smaller model cut from a converted one: its first layers, final norm and head."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from engine.errors import ModelError
from engine.models.convert import SHARD_LAYERS, write_json

BESIDE = ("generation_config.json", "tokenizer.json", "tokenizer_config.json")


def cut_layers(parent: Path, num_layers: int, folder: Path) -> None:
    """Write a model of the first `num_layers` layers into `folder`; weights are linked, not copied.

    Args:
        parent: a folder that convert_gguf wrote.
        num_layers: the layers its first weights file holds, SHARD_LAYERS.

    Raises:
        ModelError: another number of layers is asked for.
    """
    config = json.loads((parent / "config.json").read_text())
    if num_layers != SHARD_LAYERS or config["num_hidden_layers"] <= num_layers:
        raise ModelError(
            f"{parent}: the first {num_layers} layers of {config['num_hidden_layers']} cannot be "
            f"cut; only {SHARD_LAYERS} of more"
        )
    write_json(folder / "config.json", {**config, "num_hidden_layers": num_layers})
    for name in BESIDE:
        shutil.copyfile(parent / name, folder / name)
    (shard,) = parent.glob("model-00001-of-*.safetensors")
    _link(shard, folder / "model.safetensors")


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
