"""Layers that keep their weight in another order than [outputs, inputs], once, and act as before.

Which order a CPU's BLAS multiplies fastest is its own matter: engine.models.tiled and
engine.models.columns say what they hold and how it is multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn


class Rearranged(nn.Module):
    """A layer that holds its weight in an order of its own."""

    @property
    def weight(self) -> mx.array:
        """The weight as other code expects it, [outputs, inputs]; not computed, not to be set."""
        return self.in_rows()

    def in_rows(self) -> mx.array:
        """Return the weight as [outputs, inputs], not yet computed."""
        raise NotImplementedError

    def product(self, x: mx.array) -> mx.array:
        """Return x @ weight.T, [..., outputs], for x of [..., inputs]."""
        raise NotImplementedError


class RearrangedLinear(Rearranged, nn.Linear):  # type: ignore[override]  # its weight is made
    """A Linear layer of rearranged weight."""

    def __call__(self, x: mx.array) -> mx.array:
        """Return x @ weight.T + bias, [..., outputs]."""
        product = self.product(x)
        return product + self.bias if "bias" in self else product

    def whole(self) -> nn.Linear:
        """Return a plain layer with the same arrays."""
        plain = nn.Linear(1, 1, bias="bias" in self)
        plain.weight = self.weight
        if "bias" in self:
            plain.bias = self.bias
        return plain


class RearrangedEmbedding(Rearranged, nn.Embedding):  # type: ignore[override]  # its weight is made
    """An Embedding of rearranged weight, which may be the output head too."""

    def __call__(self, ids: mx.array) -> mx.array:
        """Return the features of token ids, [..., features]."""
        return self.in_rows()[ids]

    def as_linear(self, x: mx.array) -> mx.array:
        """Return x @ weight.T, [..., vocab]."""
        return self.product(x)


def rearrange(
    model: nn.Module,
    kinds: Mapping[type[nn.Module], type[Rearranged]],
    name: str,
    order: Callable[[mx.array], mx.array | None],
) -> None:
    """Let every plain float32 layer of a model hold its weight in another order.

    Nothing is computed yet.

    Args:
        kinds: what a layer of each class becomes.
        name: of the array that takes the weight's place.
        order: returns a weight in that order, None where it has to stay as it is.
    """
    walk: Any = model.named_modules  # has no annotations
    for _, module in walk():
        kind = kinds.get(type(module))
        if kind is None or module.weight.dtype != mx.float32:
            continue
        held = order(module.weight)
        if held is not None:
            del module.weight
            module[name] = held
            module.__class__ = kind
