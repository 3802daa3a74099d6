"""LoRA adapters applied per row: each row of a step has its own, or none.

The adapters of a layer lie one below the other in two matrices, so that all rows are served by two
thin products, whoever uses what: a row keeps the columns of its own adapter and zeroes the others.
Of the matrices a step takes only the span from the first adapter in use to the last.
docs/decisions/lora.md has the costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from engine.errors import RequestError
from engine.models.adapter_files import Adapter, read_adapter
from engine.models.adapter_fit import check_adapter, check_rows
from engine.models.layer_tree import exchange_layers, named_layers

if TYPE_CHECKING:
    from engine.models.load import LoadedModel

NO_ADAPTER = 0
"""Index of a row that computes the base model."""


@dataclass(frozen=True, slots=True)
class Columns:
    """What a step takes of a layer's stacked adapters.

    Args:
        span: the ranks in use.
        own: whether a rank is of the row's adapter, [rows, 1, ..., ranks]; None when all are.
        has: whether a row has an adapter, [rows, 1, ..., 1]; None when all have.
    """

    span: slice
    own: mx.array | None
    has: mx.array | None


class Selection:
    """The adapters of the rows of a step.

    Args:
        indices: of each row, NO_ADAPTER or the number of an adapter, from 1.
    """

    def __init__(self, indices: tuple[int, ...]) -> None:
        self.indices = indices
        self._columns: dict[tuple[tuple[int, ...], int], Columns | None] = {}

    def columns(self, ranks: tuple[int, ...], ndim: int) -> Columns | None:
        """Return the columns of a layer, None when no row has an adapter there.

        Args:
            ranks: of each adapter in the layer, 0 for one that leaves it alone. Layers of equal
                ranks share what is made here.
            ndim: axes of the layer's input.
        """
        if (ranks, ndim) not in self._columns:
            self._columns[ranks, ndim] = self._lay_out(ranks, ndim)
        return self._columns[ranks, ndim]

    def _lay_out(self, ranks: tuple[int, ...], ndim: int) -> Columns | None:
        used = [index for index in set(self.indices) if index and ranks[index - 1]]
        if not used:
            return None
        ends = np.cumsum((0, *ranks))
        span = slice(int(ends[min(used) - 1]), int(ends[max(used)]))
        owners = np.repeat(np.arange(1, len(ranks) + 1), ranks)[span]
        own = np.array(self.indices)[:, None] == owners
        return Columns(span, _mask(own, ndim), _mask(own.any(axis=1, keepdims=True), ndim))


def _mask(values: np.ndarray, ndim: int) -> mx.array | None:
    if values.all():
        return None
    rows, columns = values.shape
    return mx.array(values.reshape(rows, *[1] * (ndim - 2), columns))


@dataclass(slots=True)
class Selector:
    """What all layers of a model look at; None computes the base model."""

    selection: Selection | None = None


class AdaptedLinear(nn.Module):
    """A linear layer with the adapters of its rows.

    Args:
        base: the layer, as it is.
        down: stacked adapters, [ranks, inputs].
        up: stacked adapters, [ranks, outputs].
        ranks: of each adapter, in order; they add up to the first axis of `down` and `up`.
    """

    def __init__(
        self,
        base: nn.Module,
        down: mx.array,
        up: mx.array,
        ranks: tuple[int, ...],
        selector: Selector,
    ) -> None:
        init: Any = super().__init__  # has no annotations
        init()
        self.base, self.down, self.up = base, down, up
        self._ranks, self._selector = ranks, selector

    def __call__(self, x: mx.array) -> mx.array:
        """Return base(x), plus x @ down.T @ up of each row's own adapter, [rows, ..., outputs].

        A row without an adapter keeps the base layer's bits.
        """
        out: mx.array = self.base(x)
        selection = self._selector.selection
        if selection is None:
            return out
        columns = selection.columns(self._ranks, x.ndim)
        if columns is None:
            return out
        assert x.shape[0] == len(selection.indices), "one adapter index for each row of a step"
        inner = x.astype(mx.float32) @ self.down[columns.span].T
        if columns.own is not None:
            inner = mx.where(columns.own, inner, 0.0)
        adapted: mx.array = out + (inner @ self.up[columns.span]).astype(out.dtype)
        return adapted if columns.has is None else mx.where(columns.has, adapted, out)


class AdapterSet:
    """The adapters of one engine, mounted in a copy of its model that shares all arrays.

    Attributes:
        model: computes the rows as `select` says.
    """

    def __init__(self, model: LoadedModel, adapters: Sequence[Adapter] = ()) -> None:
        self.names = tuple(adapter.name for adapter in adapters)
        self._selector = Selector()
        mounted = _mount(model.model, adapters, self._selector)
        self.model = replace(model, model=mounted) if adapters else model

    def index(self, name: str) -> int:
        """Return the number `select` knows an adapter by; "" is none.

        Raises:
            RequestError: there is no such adapter; the text lists those there are.
        """
        if name == "":
            return NO_ADAPTER
        if name not in self.names:
            known = ", ".join(self.names) or "none; start the engine with adapters"
            raise RequestError(f"unknown adapter {name!r}; known: {known}")
        return self.names.index(name) + 1

    def select(self, indices: Sequence[int] | None) -> None:
        """Say which adapter each row of the next forward has; None computes the base model.

        Args:
            indices: from `index`, [rows].
        """
        selector = self._selector
        if indices is None or not any(indices):
            selector.selection = None
        elif selector.selection is None or selector.selection.indices != tuple(indices):
            selector.selection = Selection(tuple(indices))


def load_adapters(model: LoadedModel, places: Mapping[str, str | Path]) -> AdapterSet:
    """Read adapters and mount them. Waits for the device.

    Args:
        model: stays as it is, and whoever else runs it computes what it did.
        places: name -> folder that MLX-LM or PEFT wrote.

    Raises:
        ModelError: a folder cannot be read, holds more than plain LoRA, or is not made for this
            model.
    """
    adapters = [read_adapter(name, Path(place).expanduser()) for name, place in places.items()]
    for adapter in adapters:
        check_adapter(adapter, model.model)
    check_rows(model.model, {path for adapter in adapters for path in adapter.layers})
    return AdapterSet(model, adapters)


def _mount(model: nn.Module, adapters: Sequence[Adapter], selector: Selector) -> nn.Module:
    layers = named_layers(model)
    paths = {path: None for adapter in adapters for path in adapter.layers}
    mounted = {path: _stack(layers[path], path, adapters, selector) for path in paths}
    return exchange_layers(model, mounted)


def _stack(
    base: nn.Module, path: str, adapters: Sequence[Adapter], selector: Selector
) -> AdaptedLinear:
    pairs = [adapter.layers.get(path) for adapter in adapters]
    down = mx.concatenate([pair.down for pair in pairs if pair is not None])
    up = mx.concatenate([pair.up for pair in pairs if pair is not None])
    mx.eval(down, up)
    ranks = tuple(0 if pair is None else pair.down.shape[0] for pair in pairs)
    return AdaptedLinear(base, down, up, ranks, selector)
