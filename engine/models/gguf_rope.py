"""The rotary settings of a GGUF file in MLX-LM's terms, or a refusal."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.errors import ModelError
from engine.models.gguf import INSTEAD, REMEDY, GgufFile

ROPE_FACTORS = "rope_freqs.weight"
"""Llama 3's factors per frequency; they follow from the settings, so they are only checked."""

LLAMA3_LOW, LLAMA3_HIGH, LLAMA3_CONTEXT = 1.0, 4.0, 8192
"""What every released Llama 3.x uses; GGUF keeps only the factors that come of them."""


def rope_scaling(file: GgufFile, head_dim: int, theta: float) -> dict[str, Any] | None:
    """Return config.json's `rope_scaling`, None for plain rotary positions.

    Raises:
        ModelError: a kind of scaling, or factors, that cannot be expressed.
    """
    prefix = file.value("general.architecture", str)
    kind = file.value(f"{prefix}.rope.scaling.type", str, "none")
    if ROPE_FACTORS in file.tensors:
        return _llama3(file, head_dim, theta)
    if kind == "linear":
        return {"type": "linear", "factor": file.value(f"{prefix}.rope.scaling.factor", float)}
    if kind != "none":
        raise ModelError(f"{file.path}: rotary scaling {kind!r} is not supported; {INSTEAD}")
    return None


def llama3_factors(factor: float, head_dim: int, theta: float) -> np.ndarray:
    """Return what Llama 3 divides each frequency by, [head_dim / 2].

    Long waves are slowed by `factor`, short ones kept, those between blended.
    """
    frequencies = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    turns = LLAMA3_CONTEXT * frequencies / (2 * np.pi)
    blend = np.clip((turns - LLAMA3_LOW) / (LLAMA3_HIGH - LLAMA3_LOW), 0, 1)
    factors: np.ndarray = 1 / ((1 - blend) / factor + blend)
    return factors


def _llama3(file: GgufFile, head_dim: int, theta: float) -> dict[str, Any]:
    tensor = file.tensors[ROPE_FACTORS]
    if tensor.type_name != "F32" or tensor.shape != (head_dim // 2,):
        raise ModelError(
            f"{file.path}: tensor {ROPE_FACTORS!r} is {tensor.type_name} {tensor.shape}, not F32 "
            f"({head_dim // 2},); {REMEDY}"
        )
    found = np.fromfile(file.path, dtype="<f4", count=head_dim // 2, offset=tensor.start)
    factor = float(found.max())
    if not np.allclose(found, llama3_factors(factor, head_dim, theta), rtol=1e-3):
        raise ModelError(f"{file.path}: its rotary factors are not Llama 3's; {INSTEAD}")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": LLAMA3_LOW,
        "high_freq_factor": LLAMA3_HIGH,
        "original_max_position_embeddings": LLAMA3_CONTEXT,
    }
