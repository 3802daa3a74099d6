"""Tensor data comes out of a GGUF as the numbers that were meant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from engine.errors import ModelError
from engine.models.gguf import read_gguf
from engine.models.gguf_weights import MLX_BITS, PACKAGE_TYPES, open_weights, unpermute

Build = Callable[..., Path]
Pack = Callable[[int, int, str], Any]
NAME = "blk.0.ffn_down.weight"


def taken(path: Path) -> np.ndarray:
    values = open_weights(read_gguf(path)).take(NAME)
    return np.array(values.astype(values.dtype))


def dequantised(path: Path) -> np.ndarray:
    """What the gguf package's own reader makes of the tensor."""
    reader = gguf.GGUFReader(path)
    (tensor,) = [tensor for tensor in reader.tensors if tensor.name == NAME]
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type)


@pytest.mark.parametrize("kind", MLX_BITS)
def test_mlx_reads_its_types_as_the_gguf_package_does(build_gguf: Build, kind: str) -> None:
    path = build_gguf(kind=kind)
    np.testing.assert_allclose(taken(path), dequantised(path), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [kind for kind in PACKAGE_TYPES if kind != "BF16"])
def test_other_types_are_read_through_the_gguf_package(
    build_gguf: Build, packed: Pack, kind: str
) -> None:
    path = build_gguf(tensors={NAME: packed(64, 256, kind)})
    np.testing.assert_array_equal(taken(path), dequantised(path))


def test_bfloat16_is_read_exactly(build_gguf: Build) -> None:
    path = build_gguf(kind="BF16")
    np.testing.assert_array_equal(taken(path), dequantised(path))


def test_a_type_neither_can_read_is_refused_by_name(build_gguf: Build, packed: Pack) -> None:
    file = read_gguf(build_gguf(tensors={NAME: packed(64, 256, "IQ4_NL")}))
    with pytest.raises(ModelError, match=r"GGUF type IQ4_NL is not supported; use a file of F32"):
        open_weights(file)


def test_rotary_order_is_restored_head_by_head() -> None:
    """Interleaved pairs (a0 b0 a1 b1) of each head become halves (a0 a1 b0 b1)."""
    import mlx.core as mx

    stored = mx.array([[0], [2], [1], [3], [10], [12], [11], [13]])
    assert unpermute(stored, 2).tolist() == [[0], [1], [2], [3], [10], [11], [12], [13]]
