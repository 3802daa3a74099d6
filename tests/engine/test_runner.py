"""Models that do not fit the slots are refused; stable shapes do not change what a row gets."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.mamba import Model, ModelArgs

from engine.config import EngineConfig
from engine.errors import ModelError
from engine.loop import Engine
from engine.runner import Runner, padded_width
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


@pytest.mark.parametrize("num_tokens", [1, 16, 17, 200, 512])
def test_a_padded_prompt_is_the_next_power_of_two_wide(num_tokens: int) -> None:
    width = padded_width(num_tokens)
    assert width >= max(num_tokens, 16)
    assert width & (width - 1) == 0
    assert width == 16 or width // 2 < num_tokens


@pytest.mark.parametrize("chunks", [[5], [3, 30], [40, 300, 1]], ids=str)
def test_stable_shapes_give_a_row_the_logits_of_exact_ones(chunks: list[int]) -> None:
    exact, padded = Runner(tiny_model()), Runner(tiny_model(), read_block=256)
    start = 0
    for size in chunks:
        tokens = [(start + index) % 200 for index in range(size)]
        expected, found = (runner.prefill(0, start, tokens) for runner in (exact, padded))
        np.testing.assert_allclose(np.array(found), np.array(expected), atol=2e-5)
        start += size
    ids = mx.array([[7]])
    expected, found = (runner.forward(ids, 0, [start]) for runner in (exact, padded))
    np.testing.assert_allclose(np.array(found), np.array(expected), atol=2e-5)
