"""Tensor data of a checked GGUF file as float arrays, one at a time."""

from __future__ import annotations

from typing import Protocol

import gguf.quants
import mlx.core as mx
import numpy as np
from gguf.constants import GGMLQuantizationType

from engine.errors import ModelError
from engine.models.gguf import GgufFile, GgufTensor
from engine.models.gguf_arch import Part

MLX_BITS = {"F32": 0, "F16": 0, "Q4_0": 4, "Q4_1": 4, "Q8_0": 8}
"""Types MLX reads itself, with the bits of their quantised form (0 = plain floats)."""

MLX_GROUP_SIZE = 32

PACKAGE_TYPES = ("Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "BF16")
"""Types the gguf package dequantises."""


class WeightReader(Protocol):
    """Hands out a tensor once; what it held for it is free afterwards."""

    def take(self, name: str) -> mx.array:
        """Return the tensor in float32 (plain types keep theirs), [slowest axis, ...]."""


def open_weights(file: GgufFile) -> WeightReader:
    """Return the reader that fits the file's tensor types.

    Raises:
        ModelError: a tensor has a type neither MLX nor the gguf package can read.
    """
    types = {tensor.type_name for tensor in file.tensors.values()}
    for name in sorted(types):
        if name not in MLX_BITS and name not in PACKAGE_TYPES:
            known = ", ".join([*MLX_BITS, *PACKAGE_TYPES])
            raise ModelError(
                f"{file.path}: GGUF type {name} is not supported; use a file of {known}"
            )
    if types <= set(MLX_BITS):
        return MlxWeights(file)
    return PackageWeights(file)


class MlxWeights:
    """Reads through MLX, which keeps Q4_0, Q4_1 and Q8_0 packed until they are taken."""

    def __init__(self, file: GgufFile) -> None:
        self._tensors = file.tensors
        try:
            arrays = mx.load(str(file.path), format="gguf")
        except (RuntimeError, ValueError) as error:
            raise ModelError(f"{file.path}: MLX cannot read it ({error})") from error
        assert isinstance(arrays, dict)
        self._arrays: dict[str, mx.array] = arrays

    def take(self, name: str) -> mx.array:
        """Return the tensor in float32 (plain types keep theirs), [slowest axis, ...]."""
        bits = MLX_BITS[self._tensors[name].type_name]
        weight = self._arrays.pop(name)
        if not bits:
            return weight
        base = name.removesuffix(".weight")
        scales = self._arrays.pop(f"{base}.scales").astype(mx.float32)
        biases = self._arrays.pop(f"{base}.biases").astype(mx.float32)
        return mx.dequantize(weight, scales, biases, group_size=MLX_GROUP_SIZE, bits=bits)


class PackageWeights:
    """Reads through the gguf package, block by block in numpy."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file

    def take(self, name: str) -> mx.array:
        """Return the tensor in float32, [slowest axis, ...]."""
        tensor = self._file.tensors[name]
        kind = GGMLQuantizationType[tensor.type_name]
        values = gguf.quants.dequantize(self._bytes(tensor), kind)
        return mx.array(values.reshape(tensor.shape).astype(np.float32, copy=False))

    def _bytes(self, tensor: GgufTensor) -> np.ndarray:
        rows = int(np.prod(tensor.shape[:-1]))
        return np.memmap(
            self._file.path,
            dtype=np.uint8,
            mode="r",
            offset=tensor.start,
            shape=(rows, tensor.num_bytes // rows),
        )


def read_part(reader: WeightReader, part: Part) -> mx.array:
    """Return one array of the model as MLX-LM wants it; nothing is evaluated yet."""
    values = reader.take(part.source)
    return unpermute(values, part.rotary_heads) if part.rotary_heads else values


def unpermute(rows: mx.array, num_heads: int) -> mx.array:
    """Undo llama.cpp's rotary order: pairs (2i, 2i + 1) of a head become (i, i + head_dim / 2).

    Args:
        rows: [num_heads * head_dim, hidden].
    """
    paired = rows.reshape(num_heads, -1, 2, *rows.shape[1:])
    return paired.swapaxes(1, 2).reshape(rows.shape)
