"""A model whose layers do not fit the slots is refused when the engine opens."""

from __future__ import annotations

from dataclasses import replace

import pytest
from mlx_lm.models.mamba import Model, ModelArgs

from engine.config import EngineConfig
from engine.errors import ModelError
from engine.loop import Engine
from engine.testing import tiny_model


def test_a_recurrent_model_is_refused_with_the_cache_it_needs() -> None:
    args = ModelArgs(
        model_type="mamba",
        vocab_size=tiny_model().vocab_size,
        hidden_size=16,
        intermediate_size=32,
        state_size=4,
        num_hidden_layers=1,
        conv_kernel=4,
        use_bias=False,
        use_conv_bias=True,
        time_step_rank=2,
    )
    model = replace(tiny_model(), name="recurrent", model=Model(args), num_layers=1, path=None)
    with pytest.raises(ModelError, match="recurrent keeps ArraysCache"):
        Engine(model, EngineConfig())
