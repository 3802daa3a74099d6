"""A model's tree of layers: copied without its arrays, so that layers can be exchanged in the copy.

A loaded model is shared by whoever runs it. Exchanging layers in place would change what the
others compute, and copying the weights would cost the model's size.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

import mlx.nn as nn
from mlx.utils import tree_unflatten


def named_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return every module of a model by its dotted path, as in the names of its weights."""
    walk: Any = model.named_modules  # has no annotations
    return dict(walk())


def exchange_layers(model: nn.Module, layers: Mapping[str, nn.Module]) -> nn.Module:
    """Return a model that shares all arrays with `model` and has other layers at some paths.

    Args:
        layers: dotted path -> the layer to stand there.
    """
    copied: nn.Module = _copied(model, {})
    update: Any = copied.update_modules  # has no annotations
    update(tree_unflatten(list(layers.items())))
    return copied


def _copied(value: Any, done: dict[int, Any]) -> Any:
    """Copy modules and containers; a part that occurs twice stays one part."""
    if id(value) in done:
        return done[id(value)]
    if isinstance(value, tuple):
        return tuple(_copied(part, done) for part in value)
    if not isinstance(value, dict | list):
        return value
    made = done[id(value)] = copy(value)
    for key, part in list(value.items() if isinstance(value, dict) else enumerate(value)):
        made[key] = _copied(part, done)
    return made
