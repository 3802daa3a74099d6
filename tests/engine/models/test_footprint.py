"""The weights a step reads are those its forward touches: all but rows that are looked up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.switch_layers import SwitchLinear

from engine.config import EngineConfig
from engine.loop import Engine
from engine.models.columns import column_weights
from engine.models.footprint import step_weight_bytes
from engine.models.load import LoadedModel
from engine.models.rearranged import RearrangedEmbedding
from engine.models.tiled import tile_weights
from engine.testing import tiny_model
from tests.engine.cache.families import SETTINGS, family

EXPERTS = ("gpt_oss", "qwen3_next")


def nbytes(model: nn.Module) -> int:
    """Bytes of all weights."""
    return sum(array.nbytes for _, array in tree_flatten(model.parameters()))


def heads(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """The embeddings that a forward of the model uses as its output head."""
    used: list[nn.Module] = []
    for kind in (nn.Embedding, nn.QuantizedEmbedding, RearrangedEmbedding):
        call: Callable[..., Any] = kind.as_linear

        def watched(self: nn.Module, x: mx.array, call: Callable[..., Any] = call) -> mx.array:
            used.append(self)
            return call(self, x)

        monkeypatch.setattr(kind, "as_linear", watched)
    model.model(mx.array([[1]]))
    return used


def looked_up(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes of the embeddings that a forward only looks rows up in."""
    used = heads(model, monkeypatch)
    kinds = (nn.Embedding, nn.QuantizedEmbedding)
    found = [module for _, module in model.model.named_modules() if isinstance(module, kinds)]
    return sum(nbytes(module) for module in found if not any(module is item for item in used))


@pytest.mark.parametrize("name", [name for name in SETTINGS if name not in EXPERTS])
def test_every_weight_is_read_but_those_of_embeddings_that_are_no_head(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = family(name)
    expected = nbytes(model.model) - looked_up(model, monkeypatch)
    assert step_weight_bytes(model) == expected


def quantised() -> LoadedModel:
    """A model in 4 bits; of a seed of its own, since models are shared by seed."""
    model = family("llama", seed=401)
    nn.quantize(model.model, group_size=32, bits=4)
    return model


def tiled() -> LoadedModel:
    """A float32 model whose weights are tiles."""
    model = family("llama", seed=402)
    tile_weights(model.model)
    mx.eval(model.model.parameters())
    return model


def in_columns() -> LoadedModel:
    """A float32 model whose weights are in columns."""
    model = family("llama", seed=403)
    column_weights(model.model)
    mx.eval(model.model.parameters())
    return model


@pytest.mark.parametrize("make", [quantised, tiled, in_columns])
def test_packed_and_rearranged_weights_are_what_they_take_in_memory(
    make: Callable[[], LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, plain = make(), family("llama")
    read = step_weight_bytes(model)
    assert read == nbytes(model.model) - looked_up(model, monkeypatch)
    whole = step_weight_bytes(plain)
    assert read is not None
    assert whole is not None
    if make is quantised:  # 4 bits and a 32nd of two scales, but for the norms
        assert 0.15 < read / whole < 0.2
    else:
        assert read == whole


@pytest.mark.parametrize("name", EXPERTS)
def test_of_experts_a_step_reads_those_of_one_token(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = family(name)
    model = replace(silent, config=SETTINGS[name])
    kinds = [m for _, m in model.model.named_modules() if isinstance(m, SwitchLinear)]
    experts = sum(map(nbytes, kinds))
    share = SETTINGS[name]["num_experts_per_tok"] / kinds[0].weight.shape[0]
    rest = nbytes(model.model) - looked_up(model, monkeypatch) - experts
    assert experts > 0
    assert step_weight_bytes(model) == rest + round(share * experts)
    assert step_weight_bytes(silent) is None  # its config tells nothing of experts


def test_an_engine_tells_what_a_step_reads() -> None:
    model = tiny_model()
    told = Engine(model, EngineConfig()).step_bytes
    assert told.weights == step_weight_bytes(model)
    config = model.config
    per_layer = 2 * config["num_key_value_heads"] * config["head_dim"]
    assert told.kv_per_token == 4 * per_layer * model.num_layers
    assert told.kv_per_row == 0
    wide = family("llama")
    plain, packed = (Engine(wide, EngineConfig(kv_bits=bits)).step_bytes for bits in (None, 8))
    assert packed.kv_per_token < plain.kv_per_token
    assert packed.weights == plain.weights
