"""An adapter merged into a copy of a model's weights: the other way to apply one.

The copy serves one adapter to all rows and costs the adapted layers' weights once more; the oracle
compares with it what a step computes per row.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn

from engine.models.adapter_files import LowRank, read_adapter
from engine.models.adapter_fit import check_adapter
from engine.models.layer_tree import exchange_layers, named_layers
from engine.models.load import LoadedModel
from engine.models.rearranged import RearrangedLinear


def merge_adapter(model: LoadedModel, place: str | Path) -> LoadedModel:
    """Return the model with W + up.T @ down for every weight W an adapter touches.

    Packed weights of those layers are unpacked. Waits for the device.

    Raises:
        ModelError: the adapter cannot be read or is not made for this model.
    """
    adapter = read_adapter(model.name, Path(place).expanduser())
    check_adapter(adapter, model.model)
    layers = named_layers(model.model)
    merged = {path: _merged(layers[path], pair) for path, pair in adapter.layers.items()}
    return replace(model, model=exchange_layers(model.model, merged))


def _merged(layer: nn.Module, pair: LowRank) -> nn.Module:
    plain = _plain(layer)
    weight = plain.weight.astype(mx.float32) + pair.up.T @ pair.down
    plain.weight = weight.astype(plain.weight.dtype)
    mx.eval(plain.weight)
    return plain


def _plain(layer: nn.Module) -> nn.Module:
    if isinstance(layer, nn.QuantizedLinear):
        return _unpacked(layer)
    return layer.whole() if isinstance(layer, RearrangedLinear) else copy(layer)


def _unpacked(layer: nn.QuantizedLinear) -> nn.Module:
    weight = mx.dequantize(
        layer.weight,
        layer.scales,
        layer.get("biases"),
        group_size=layer.group_size,
        bits=layer.bits,
        mode=layer.mode,
    )
    outputs, inputs = weight.shape
    plain = nn.Linear(inputs, outputs, bias="bias" in layer)
    plain.weight = weight
    if "bias" in layer:
        plain.bias = layer.bias
    return plain
