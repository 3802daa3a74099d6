"""The CUDA kernels give what plain MLX gives, and a row's bits do not depend on its company."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from engine.backend import backend_info
from engine.fused import kernels, reference
from engine.fused.parts import take_parts
from engine.fused.step import decode, fused_step

from .conftest import MODELS

pytestmark = pytest.mark.skipif(backend_info().device != "cuda", reason="the kernels are CUDA's")

STARTS = [0, 7, 31, 200]


def half(model: Any) -> Any:
    model.set_dtype(mx.bfloat16)
    return model


def caches(model: Any) -> tuple[list[mx.array], list[mx.array]]:
    mx.random.seed(5)
    dim = model.layers[0].self_attn.k_proj.weight.shape[0] // 2
    shape = (4, 2, 256, dim)
    held = [[mx.random.normal(shape, mx.bfloat16) for _ in model.layers] for _ in range(2)]
    mx.eval(held)
    return held[0], held[1]


@pytest.mark.parametrize("width", [1, 2, 16])
@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_the_kernels_agree_with_plain_mlx(build: Any, width: int) -> None:
    model = half(build())
    parts = take_parts(model)
    assert parts is not None
    ids, slots = mx.arange(4 * width).reshape(4, width), mx.arange(4)
    at = mx.array(STARTS)
    plain = decode(parts, reference, ids, slots, at, *caches(model))
    found = decode(parts, kernels, ids, slots, at, *caches(model))
    apart = mx.linalg.norm((found - plain).astype(mx.float32))
    assert (apart / mx.linalg.norm(plain.astype(mx.float32))).item() < 2e-2


@pytest.mark.parametrize("width", [2, 8])
@pytest.mark.parametrize("small_bytes", [kernels.SMALL_BYTES, 0], ids=["one tile", "tiles"])
@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_a_row_alone_has_the_bits_it_has_in_a_wider_batch(
    build: Any, small_bytes: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "SMALL_BYTES", small_bytes)
    model = half(build())
    step = fused_step(model)
    assert step is not None
    ids, slots = mx.arange(4 * width).reshape(4, width), mx.arange(4)
    at = mx.array(STARTS)
    together = step(ids, slots, at, *caches(model))
    held = caches(model)
    for row in range(4):
        one = slice(row, row + 1)
        alone = step(ids[one, :1], slots[one], at[one], *held)
        np.testing.assert_array_equal(
            np.array(alone[0, 0].astype(mx.float32)),
            np.array(together[row, 0].astype(mx.float32)),
        )
