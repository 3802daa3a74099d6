"""Adapters per row: each row computes its own sum, and a row without one keeps the base's bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx.utils import tree_flatten
from mlx_lm.tuner.lora import LoRALinear

from engine.backend import WeightLayout
from engine.errors import ModelError, RequestError
from engine.models.adapter_files import LowRank
from engine.models.head import split_head
from engine.models.layer_tree import exchange_layers, named_layers
from engine.models.load import ARRANGE, LoadedModel
from engine.models.lora import AdaptedLinear, Selection, Selector, load_adapters
from engine.models.merge import merge_adapter
from engine.models.rearranged import Rearranged
from engine.testing import tiny_model, write_adapter

INPUTS, OUTPUTS = 64, 96


def arranged(layout: WeightLayout) -> nn.Module:
    layer = nn.Linear(INPUTS, OUTPUTS, bias=True)
    ARRANGE[layout](layer)
    assert isinstance(layer, Rearranged)
    return layer


BASES: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: nn.Linear(INPUTS, OUTPUTS, bias=True),
    "no bias": lambda: nn.Linear(INPUTS, OUTPUTS, bias=False),
    "tiles": lambda: arranged("tiles"),
    "columns": lambda: arranged("columns"),
    "4 bit": lambda: nn.QuantizedLinear(INPUTS, OUTPUTS, bias=False, group_size=32, bits=4),
    "8 bit": lambda: nn.QuantizedLinear(INPUTS, OUTPUTS, bias=True, group_size=64, bits=8),
}
RANKS = (3, 0, 8, 1)
"""Of four adapters; the second leaves the layer alone."""


def pairs() -> list[LowRank | None]:
    draw = np.random.default_rng(5)

    def half(rank: int, size: int) -> mx.array:
        return mx.array(draw.standard_normal((rank, size)).astype(np.float32) * 0.3)

    return [LowRank(half(rank, INPUTS), half(rank, OUTPUTS)) if rank else None for rank in RANKS]


def adapted(base: nn.Module, selector: Selector) -> AdaptedLinear:
    held = [pair for pair in pairs() if pair is not None]
    down = mx.concatenate([pair.down for pair in held])
    up = mx.concatenate([pair.up for pair in held])
    return AdaptedLinear(base, down, up, RANKS, selector)


def bits(array: mx.array) -> bytes:
    return np.array(array.astype(mx.float32)).tobytes()


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("number", [1, 3, 4])
def test_a_row_computes_what_mlx_lms_layer_does(base: str, number: int) -> None:
    layer, selector = BASES[base](), Selector()
    pair = pairs()[number - 1]
    assert pair is not None
    theirs = LoRALinear.from_base(layer, r=RANKS[number - 1], scale=2.5)
    theirs.lora_a, theirs.lora_b = pair.down.T, pair.up / 2.5
    x = mx.random.normal((3, 2, INPUTS), key=mx.random.key(1))

    selector.selection = Selection((0, number, number))
    ours = adapted(layer, selector)(x)

    np.testing.assert_allclose(np.array(ours[1:]), np.array(theirs(x[1:])), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("base", BASES)
@settings(max_examples=20)
@given(
    indices=st.lists(st.integers(0, len(RANKS)), min_size=1, max_size=6).map(tuple),
    width=st.integers(1, 5),
)
def test_rows_keep_to_themselves(base: str, indices: tuple[int, ...], width: int) -> None:
    layer, selector = BASES[base](), Selector()
    wrapped = adapted(layer, selector)
    x = mx.random.normal((len(indices), width, INPUTS), key=mx.random.key(2))
    plain = layer(x)

    selector.selection = Selection(indices)
    mixed = wrapped(x)

    for row, index in enumerate(indices):
        pair = pairs()[index - 1] if index else None
        if pair is None:
            assert bits(mixed[row]) == bits(plain[row])
            continue
        expected = plain[row] + (x[row] @ pair.down.T) @ pair.up
        np.testing.assert_allclose(np.array(mixed[row]), np.array(expected), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16], ids=str)
def test_half_precision_rows_stay_half_and_base_rows_keep_their_bits(dtype: mx.Dtype) -> None:
    layer, selector = nn.Linear(INPUTS, OUTPUTS), Selector()
    layer.set_dtype(dtype)
    x = mx.random.normal((3, 2, INPUTS), key=mx.random.key(3)).astype(dtype)

    selector.selection = Selection((1, 0, 3))
    out = adapted(layer, selector)(x)

    assert out.dtype == dtype
    assert bits(out[1]) == bits(layer(x)[1])
    assert bits(out[0]) != bits(layer(x)[0])


class Zeros(nn.Module):
    """A layer whose every output is the negative zero, to which adding zero is no identity."""

    def __call__(self, x: mx.array) -> mx.array:
        return mx.full((*x.shape[:-1], OUTPUTS), -0.0)


def test_nothing_is_added_to_a_row_without_an_adapter_not_even_zero() -> None:
    selector = Selector()
    selector.selection = Selection((0, 1))
    x = mx.ones((2, 1, INPUTS))

    assert bits(adapted(Zeros(), selector)(x)[0]) == bits(Zeros()(x)[0])


def test_an_adapter_that_overflows_harms_its_own_rows_alone() -> None:
    layer, selector = nn.Linear(INPUTS, OUTPUTS), Selector()
    x = mx.random.normal((3, 1, INPUTS), key=mx.random.key(4))
    wrapped = adapted(layer, selector)
    selector.selection = Selection((0, 1, 1))
    before = wrapped(x)
    wrapped.down = mx.concatenate([wrapped.down[:3], mx.full((9, INPUTS), 3e38)])

    selector.selection = Selection((0, 1, 3))
    out = wrapped(x)

    assert bits(out[0]) == bits(before[0])
    np.testing.assert_allclose(np.array(out[1]), np.array(before[1]), atol=1e-5)
    assert not bool(mx.all(mx.isfinite(out[2])))


def test_only_the_adapters_in_use_are_read() -> None:
    for indices, span in [((1,), slice(0, 3)), ((0, 3), slice(3, 11)), ((4, 3), slice(3, 12))]:
        columns = Selection(indices).columns(RANKS, 3)
        assert columns is not None
        assert columns.span == span
    assert Selection((2, 0)).columns(RANKS, 3) is None


def test_rows_that_all_have_the_same_adapter_are_not_masked() -> None:
    columns = Selection((3, 3)).columns(RANKS, 3)

    assert columns is not None
    assert (columns.own, columns.has) == (None, None)


# -- a whole model -----------------------------------------------------------------------------

IDS = mx.array([[40, 41, 42], [50, 51, 52], [60, 61, 62], [40, 41, 42]])


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    model = tiny_model()
    every = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")
    return {
        "first": write_adapter(tmp_path / "first", model, 1),
        "second": write_adapter(tmp_path / "second", model, 2, rank=7, layers=every),
    }


def quantized() -> LoadedModel:
    """The tiny model with packed linear layers."""
    layers = {
        path: nn.QuantizedLinear.from_linear(layer, 32, 8)
        for path, layer in named_layers(tiny_model().model).items()
        if isinstance(layer, nn.Linear)
    }
    return replace(tiny_model(), model=exchange_layers(tiny_model().model, layers))


@pytest.mark.parametrize("make", [tiny_model, quantized], ids=["float32", "8 bit"])
def test_each_row_scores_as_a_model_with_its_adapter_merged(
    make: Callable[[], LoadedModel], places: dict[str, Path]
) -> None:
    model = make()
    adapters = load_adapters(model, places)
    merged = [model, *(merge_adapter(model, place) for place in places.values())]

    adapters.select([0, 1, 2, 1])
    mixed = adapters.model.model(IDS)

    assert bits(mixed[0]) == bits(model.model(IDS)[0])
    for row, index in enumerate([0, 1, 2, 1]):
        alone = merged[index].model(IDS[row : row + 1])[0]
        np.testing.assert_allclose(np.array(mixed[row]), np.array(alone), atol=1e-5, rtol=1e-5)
        if index:
            assert float(mx.abs(mixed[row] - model.model(IDS)[row]).max()) > 0.5


@pytest.mark.parametrize("indices", [None, [0, 0, 0, 0]])
def test_a_step_without_adapters_is_the_base_model_to_the_operation(
    places: dict[str, Path], indices: list[int] | None
) -> None:
    model = tiny_model()
    adapters = load_adapters(model, places)
    adapters.select([1, 2, 0, 0])
    adapters.model.model(IDS)

    adapters.select(indices)

    assert num_operations(adapters.model.model(IDS)) == num_operations(model.model(IDS))
    assert num_operations(adapters.model.model(IDS)) > 100
    assert bits(adapters.model.model(IDS)) == bits(model.model(IDS))


def num_operations(array: mx.array) -> int:
    """Operations in the graph of an array that is not computed yet."""
    lines: list[str] = []

    class Sink:
        def write(self, text: str) -> None:
            lines.append(text)

    mx.export_to_dot(Sink(), array)
    return "".join(lines).count("shape=rectangle")


def test_loading_leaves_the_model_as_it_was_and_copies_no_weight(places: dict[str, Path]) -> None:
    model = tiny_model()
    before = bits(model.model(IDS))
    arrays = dict(tree_flatten(model.model.parameters()))

    adapters = load_adapters(model, places)
    adapters.select([1, 1, 2, 2])
    adapters.model.model(IDS)

    assert bits(model.model(IDS)) == before
    assert not any(isinstance(m, AdaptedLinear) for m in named_layers(model.model).values())
    mounted = dict(tree_flatten(adapters.model.model.parameters()))
    shared = {name.replace(".base.", "."): array for name, array in mounted.items()}
    assert all(shared[name] is array for name, array in arrays.items())


def test_two_sets_on_one_model_choose_each_for_itself(places: dict[str, Path]) -> None:
    model = tiny_model()
    one, other = load_adapters(model, places), load_adapters(model, places)

    one.select([1, 1, 1, 1])
    other.select([2, 2, 2, 2])

    first = merge_adapter(model, places["first"]).model
    np.testing.assert_allclose(
        np.array(one.model.model(IDS)), np.array(first(IDS)), atol=1e-5, rtol=1e-5
    )


def test_the_head_is_still_split_from_the_backbone(places: dict[str, Path]) -> None:
    adapters = load_adapters(tiny_model(), places)
    backbone, head = split_head(adapters.model.model)
    adapters.select([2, 0, 1, 0])

    assert backbone is not adapters.model.model
    assert bits(head(backbone(IDS, None))) == bits(adapters.model.model(IDS))


def test_no_adapters_is_the_model_itself() -> None:
    adapters = load_adapters(tiny_model(), {})

    assert adapters.model is tiny_model()
    with pytest.raises(RequestError, match="known: none; start the engine with adapters"):
        adapters.index("first")


def test_an_unknown_name_is_refused_with_those_there_are(places: dict[str, Path]) -> None:
    adapters = load_adapters(tiny_model(), places)

    assert [adapters.index(name) for name in ("", "first", "second")] == [0, 1, 2]
    with pytest.raises(RequestError, match="unknown adapter 'third'; known: first, second"):
        adapters.index("third")


class Model(nn.Module):
    """Something like a model, with one layer no forward uses and one that sees rows mixed."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.used = nn.Linear(4, 4)
        self.unused = nn.Linear(4, 4)
        self.flat = nn.Linear(4, 4)
        self.twice: list[Any] = [self.used, self.used]

    def __call__(self, ids: mx.array) -> mx.array:
        x = self.used(self.embed(ids))
        return self.flat(x.reshape(-1, 4)).reshape(x.shape)


@pytest.mark.parametrize(
    ("layer", "message"),
    [("unused", "'unused' takes no part"), ("flat", r"rows mixed, as \[6, 4\]")],
)
def test_a_layer_that_cannot_be_applied_per_row_is_refused(
    tmp_path: Path, layer: str, message: str
) -> None:
    model = replace(tiny_model(), model=Model())
    with pytest.raises(ModelError, match=message):
        load_adapters(model, {"a": write_adapter(tmp_path, model, layers=(layer,))})


def test_a_copied_tree_keeps_parts_that_are_one() -> None:
    model = Model()
    copied = exchange_layers(model, {"flat": nn.Linear(4, 4)})

    assert copied.twice[0] is copied.used is copied.twice[1]
    assert copied.used is not model.used
    assert copied.flat is not model.flat
    assert copied.used.weight is model.used.weight
