"""LoRA adapters as MLX-LM and PEFT store them, read so defensively that nothing odd gets past.

Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models": a layer computes
W x + scale * B A x. MLX-LM stores the scale itself, PEFT an alpha: alpha / rank, or with
rank-stabilised scaling (Kalajdzievski 2023) alpha / sqrt(rank).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from engine.errors import ModelError
from engine.models.safetensors import read_header

CONFIG_FILE = "adapter_config.json"
MAX_CONFIG_BYTES = 2**20
MAX_RANK = 4096
ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
AGAIN = "fetch or train the adapter again"
PLAIN_ONLY = "fm carries plain LoRA on linear layers; train the adapter without it, or merge it"


@dataclass(frozen=True, slots=True)
class LowRank:
    """What an adapter adds to one layer: x @ down.T @ up.

    Args:
        down: [rank, inputs], float32.
        up: [rank, outputs], float32; the scale is in it.
    """

    down: mx.array
    up: mx.array


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter in memory.

    Args:
        layers: dotted path of a layer, as in the base model's weights -> what is added there.
    """

    name: str
    folder: Path
    layers: Mapping[str, LowRank]


@dataclass(frozen=True, slots=True)
class Terms:
    """What a config says that the arrays do not."""

    rank: int
    scale: float


@dataclass(frozen=True, slots=True)
class AdapterFormat:
    """How one library stores an adapter.

    Args:
        down, up: endings of the names of the two arrays of a layer.
        rank_axes: which axis of the two is the rank.
        terms: reads the config; raises ModelError on what fm does not carry.
    """

    file: str
    prefix: str
    down: str
    up: str
    rank_axes: tuple[int, int]
    terms: Callable[[Path, Mapping[str, Any]], Terms]


def read_adapter(name: str, folder: Path) -> Adapter:
    """Read an adapter folder. Waits for the device.

    Raises:
        ModelError: it is missing, damaged, of an unknown format, or more than plain LoRA.
    """
    path = folder / CONFIG_FILE
    config = _read_config(path)
    stored = _format_of(path, config)
    terms = stored.terms(path, config)
    arrays = _read_arrays(folder / stored.file)
    pairs = _pairs(folder / stored.file, stored, arrays)
    layers = {
        layer: _low_rank(f"{folder / stored.file}: {layer!r:.200}", stored, terms, *pair)
        for layer, pair in pairs.items()
    }
    return Adapter(name, folder, layers)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            text = stream.read(MAX_CONFIG_BYTES + 1)
        if len(text) > MAX_CONFIG_BYTES:
            raise ModelError(f"{path}: more than {MAX_CONFIG_BYTES} bytes; {AGAIN}")
        config = json.loads(text)
    except OSError as error:
        raise ModelError(
            f"{path}: cannot be read ({error.strerror}); name a folder that MLX-LM or PEFT wrote"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: no valid JSON; {AGAIN}") from error
    if not isinstance(config, dict):
        raise ModelError(f"{path}: no JSON object; {AGAIN}")
    return config


def _format_of(path: Path, config: Mapping[str, Any]) -> AdapterFormat:
    for key, stored in FORMATS.items():
        if key in config:
            return stored
    raise ModelError(
        f"{path}: neither {' nor '.join(FORMATS)} is in it; fm reads adapters of MLX-LM and PEFT"
    )


# -- configs -----------------------------------------------------------------------------------


def _mlx_terms(path: Path, config: Mapping[str, Any]) -> Terms:
    kind = config.get("fine_tune_type", "lora")
    if kind != "lora":
        raise ModelError(f"{path}: fine_tune_type is {_shown(kind)}; {PLAIN_ONLY}")
    parameters = config["lora_parameters"]
    if not isinstance(parameters, dict):
        raise ModelError(f"{path}: lora_parameters is {_shown(parameters)}, no object; {AGAIN}")
    return Terms(_rank(path, parameters, "rank"), _number(path, parameters, "scale"))


REFUSED_BY_PEFT: dict[str, tuple[Any, ...]] = {
    "use_dora": (None, False),
    "bias": (None, "none"),
    "lora_bias": (None, False),
    "modules_to_save": (None, []),
    "trainable_token_indices": (None, [], {}),
    "target_parameters": (None, []),
    "layer_replication": (None, []),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
    "fan_in_fan_out": (None, False),
    "use_qalora": (None, False),
    "use_bdlora": (None, False),
    "alora_invocation_tokens": (None, []),
    "arrow_config": (None,),
    "init_lora_weights": (None, True, False, "gaussian", "eva", "orthogonal"),
}
"""PEFT setting -> the values that leave an adapter plain LoRA on unchanged base weights."""


def _peft_terms(path: Path, config: Mapping[str, Any]) -> Terms:
    kind = config["peft_type"]
    if kind != "LORA":
        raise ModelError(f"{path}: peft_type is {_shown(kind)}; {PLAIN_ONLY}")
    for key, plain in REFUSED_BY_PEFT.items():
        value = config.get(key)
        if not any(value == one and type(value) is type(one) for one in plain):
            raise ModelError(f"{path}: {key} is {_shown(value)}; {PLAIN_ONLY}")
    rank, alpha = _rank(path, config, "r"), _number(path, config, "lora_alpha")
    stabilised = config.get("use_rslora", False)
    if stabilised not in (None, False, True):
        raise ModelError(f"{path}: use_rslora is {_shown(stabilised)}, not true or false; {AGAIN}")
    return Terms(rank, alpha / (math.sqrt(rank) if stabilised else rank))


def _rank(path: Path, values: Mapping[str, Any], key: str) -> int:
    value = values.get(key)
    if type(value) is not int or not 1 <= value <= MAX_RANK:
        raise ModelError(
            f"{path}: {key} is {_shown(value)}; it must be a whole number between 1 and {MAX_RANK}"
        )
    return value


def _number(path: Path, values: Mapping[str, Any], key: str) -> float:
    value = values.get(key)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is None or not is_number or not abs(value) <= float(mx.finfo(mx.float32).max):
        raise ModelError(f"{path}: {key} is {_shown(value)}; it must be a finite number")
    return float(value)


FORMATS: dict[str, AdapterFormat] = {
    "lora_parameters": AdapterFormat(
        "adapters.safetensors", "", ".lora_a", ".lora_b", (1, 0), _mlx_terms
    ),
    "peft_type": AdapterFormat(
        "adapter_model.safetensors",
        "base_model.model.",
        ".lora_A.weight",
        ".lora_B.weight",
        (0, 1),
        _peft_terms,
    ),
}
"""The config key that tells a format -> the format."""


# -- arrays ------------------------------------------------------------------------------------


def _read_arrays(path: Path) -> dict[str, mx.array]:
    """Return the arrays of a whole file; nothing but their shapes is read yet."""
    try:
        for name, item in read_header(path, AGAIN).items():
            _check_item(path, name, item)
        arrays = mx.load(str(path), format="safetensors")
    except OSError as error:
        raise ModelError(
            f"{path}: cannot be read ({error.strerror}); fm reads adapters as safetensors, no "
            "pickled weights: save it with safe_serialization"
        ) from error
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"{path}: MLX cannot read it; {AGAIN}") from error
    assert isinstance(arrays, dict)
    return arrays


def _check_item(path: Path, name: str, item: Mapping[str, Any]) -> None:
    """Raise ModelError unless a tensor is a float matrix that fills its place in the file."""
    dtype, shape = item.get("dtype"), item.get("shape")
    start, end = item["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise ModelError(
            f"{path}: {name!r:.200} is of dtype {_shown(dtype)}; "
            f"fm reads {', '.join(ITEM_BYTES)}; {AGAIN}"
        )
    if not isinstance(shape, list) or not all(type(n) is int and n > 0 for n in shape):
        raise ModelError(f"{path}: {name!r:.200} has shape {_shown(shape)}; {AGAIN}")
    if math.prod(shape) * ITEM_BYTES[dtype] != end - start:
        raise ModelError(
            f"{path}: {name!r:.200} has {end - start} bytes for shape {shape}; {AGAIN}"
        )


def _pairs(
    path: Path, stored: AdapterFormat, arrays: Mapping[str, mx.array]
) -> dict[str, tuple[mx.array, mx.array]]:
    """Return the two arrays of every layer; any other tensor is refused."""
    found: dict[str, dict[str, mx.array]] = {}
    for name, array in arrays.items():
        ending = next((end for end in (stored.down, stored.up) if name.endswith(end)), "")
        if not ending or not name.startswith(stored.prefix):
            raise ModelError(f"{path}: {name!r:.200} is no LoRA weight of a layer; {PLAIN_ONLY}")
        layer = name[len(stored.prefix) : -len(ending)]
        found.setdefault(layer, {})[ending] = array
    for layer, halves in found.items():
        for ending in (stored.down, stored.up):
            if ending not in halves:
                raise ModelError(f"{path}: {layer!r:.200} has no {ending[1:]}; {AGAIN}")
    if not found:
        raise ModelError(f"{path}: no LoRA weights in it; {AGAIN}")
    return {layer: (halves[stored.down], halves[stored.up]) for layer, halves in found.items()}


def _low_rank(
    what: str, stored: AdapterFormat, terms: Terms, down: mx.array, up: mx.array
) -> LowRank:
    """Bring a pair into one form. Waits for the device."""
    halves = []
    for array, axis in zip((down, up), stored.rank_axes, strict=True):
        if array.ndim != 2 or array.shape[axis] != terms.rank:
            raise ModelError(
                f"{what} has an array of shape {array.shape}, axis {axis} of two should be the "
                f"rank {terms.rank}; {AGAIN}"
            )
        halves.append(array.astype(mx.float32) if axis == 0 else array.astype(mx.float32).T)
    pair = LowRank(mx.contiguous(halves[0]), mx.contiguous(halves[1] * terms.scale))
    try:
        is_finite = bool(mx.all(mx.isfinite(pair.down)) & mx.all(mx.isfinite(pair.up)))
    except RuntimeError as error:
        raise ModelError(f"{what} cannot be read ({error!s:.200}); {AGAIN}") from error
    if not is_finite:
        raise ModelError(f"{what} holds values that are not finite in float32; {AGAIN}")
    return pair


def _shown(value: Any) -> str:
    """Return a value of a file for an error: short, and no nesting is walked."""
    if isinstance(value, dict | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"{value!r:.80}"
