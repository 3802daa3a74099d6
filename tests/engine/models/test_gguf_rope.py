"""Rotary scaling of a GGUF becomes MLX-LM's, exactly, or is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.rope_utils import Llama3RoPE

from engine.errors import ModelError
from engine.models.gguf import read_gguf
from engine.models.gguf_rope import ROPE_FACTORS, llama3_factors, rope_scaling

Build = Callable[..., Path]


def test_plain_positions_have_no_scaling(build_gguf: Build) -> None:
    assert rope_scaling(read_gguf(build_gguf()), 16, 10000.0) is None


def test_linear_scaling_keeps_its_factor(build_gguf: Build) -> None:
    settings = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    file = read_gguf(build_gguf(settings=settings))
    assert rope_scaling(file, 16, 10000.0) == {"type": "linear", "factor": 4.0}


def test_other_scaling_is_refused_by_name(build_gguf: Build) -> None:
    file = read_gguf(build_gguf(settings={"llama.rope.scaling.type": "yarn"}))
    with pytest.raises(ModelError, match="'yarn' is not supported"):
        rope_scaling(file, 16, 10000.0)


def test_llama3_factors_give_back_the_settings_they_came_from(build_gguf: Build) -> None:
    factors = llama3_factors(32.0, 16, 500000.0).astype(np.float32)
    scaling = rope_scaling(read_gguf(build_gguf(tensors={ROPE_FACTORS: factors})), 16, 500000.0)
    assert scaling is not None
    rope = Llama3RoPE(dims=16, base=500000.0, scaling_config=scaling)
    plain = 500000.0 ** (np.arange(0, 16, 2) / 16)
    np.testing.assert_allclose(np.array(rope._freqs), plain * factors, rtol=1e-5)
    mx.eval(rope._freqs)


def test_factors_of_another_origin_are_refused(build_gguf: Build) -> None:
    file = read_gguf(build_gguf(tensors={ROPE_FACTORS: np.linspace(1, 8, 8, dtype=np.float32)}))
    with pytest.raises(ModelError, match="not Llama 3's"):
        rope_scaling(file, 16, 500000.0)
