"""Whether an adapter is one of this model: its layers exist, have its shapes, and are computed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from engine.errors import ModelError
from engine.models.adapter_files import Adapter
from engine.models.layer_tree import exchange_layers, named_layers

PROBE_ROWS, PROBE_WIDTH = 3, 2


class ProbedLayer(nn.Module):
    """A linear layer that writes down the shape of what it is given."""

    def __init__(self, base: nn.Module, seen: dict[str, list[tuple[int, ...]]], path: str) -> None:
        init: Any = super().__init__  # has no annotations
        init()
        self.base, self._seen, self._path = base, seen, path

    def __call__(self, x: mx.array) -> mx.array:
        """Return base(x)."""
        self._seen.setdefault(self._path, []).append(x.shape)
        out: mx.array = self.base(x)
        return out


def check_adapter(adapter: Adapter, model: nn.Module) -> None:
    """Check names and shapes.

    Raises:
        ModelError: a layer is none of the model's, is not linear, or has another shape.
    """
    layers = named_layers(model)
    for path, pair in adapter.layers.items():
        what = f"adapter {adapter.name!r}, {adapter.folder}: layer {path[:200]!r}"
        layer = layers.get(path)
        if layer is None:
            raise ModelError(f"{what} is none of this model's; take an adapter made for it")
        if not isinstance(layer, nn.Linear | nn.QuantizedLinear):
            raise ModelError(
                f"{what} is of type {type(layer).__name__}; fm carries LoRA on linear layers, "
                "train the adapter on those alone"
            )
        wanted, found = linear_shape(layer), (pair.up.shape[1], pair.down.shape[1])
        if wanted != found:
            raise ModelError(
                f"{what} has [outputs, inputs] {list(wanted)} and the adapter is for "
                f"{list(found)}; take an adapter made for this model"
            )


def check_rows(model: nn.Module, paths: Iterable[str]) -> None:
    """Check that a forward computes every layer, with one leading entry a row.

    Builds one forward and computes nothing.

    Raises:
        ModelError: a layer is never computed, or mixes rows, so that no row can have its own
            adapter there.
    """
    layers, seen = named_layers(model), dict[str, list[tuple[int, ...]]]()
    probes = {path: ProbedLayer(layers[path], seen, path) for path in paths}
    exchange_layers(model, probes)(mx.zeros((PROBE_ROWS, PROBE_WIDTH), dtype=mx.int32))
    for path in probes:
        if path not in seen:
            raise ModelError(f"layer {path!r} takes no part in a forward; drop it from the adapter")
        for shape in seen[path]:
            if len(shape) < 3 or shape[0] != PROBE_ROWS:
                raise ModelError(
                    f"layer {path!r} is given rows mixed, as {list(shape)}; drop it from the "
                    "adapter, or merge the adapter into the model"
                )


def linear_shape(layer: nn.Module) -> tuple[int, int]:
    """Return (outputs, inputs) of a linear layer, packed or not."""
    outputs, inputs = layer.weight.shape
    if isinstance(layer, nn.QuantizedLinear):
        inputs = layer.scales.shape[-1] * layer.group_size
    return int(outputs), int(inputs)
