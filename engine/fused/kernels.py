"""The two operations of a decode step as CUDA kernels; reference.py says what they compute.

A step of a small model costs what launching its kernels costs, and a product through cuBLAS costs
five times as much as any other launch, so each of these does all that fits between two products.
Both give a token the same result whatever else is computed beside it.
"""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx

from engine.fused import reference
from engine.fused.parts import Heads, Projection

MOST_TOKENS = 32
"""Tokens of a step up to which `project` beats cuBLAS; docs/decisions/step.md has the figures."""

DTYPES = frozenset({mx.bfloat16, mx.float16})

THREADS = 256
QUERIES = 4
"""Most queries one block of `attend` answers."""


def project(parts: Projection, x: mx.array, residual: mx.array | None = None) -> mx.array:
    """See engine.fused.reference.project."""
    tokens = x.shape[0]
    if tokens > MOST_TOKENS:
        return reference.project(parts, x, residual)
    outputs = parts.weight.shape[0] // (2 if parts.gated else 1)
    tiles = next(tiles for tiles in (1, 2, 4) if 8 * tiles >= min(tokens, 32))
    out: mx.array
    (out,) = _kernel("project", ("x", "weight", "gain", "bias", "residual"))(
        inputs=[x, parts.weight, *_given(x, parts.gain, parts.bias, residual)],
        template=[
            ("T", x.dtype),
            ("TILES", tiles),
            ("GATED", parts.gated),
            ("NORM", parts.gain is not None),
            ("BIAS", parts.bias is not None),
            ("RESIDUAL", residual is not None),
            ("EPS_BITS", _bits(parts.eps)),
        ],
        grid=(-(-outputs // 16) * THREADS, -(-tokens // (8 * tiles)), 1),
        threadgroup=(THREADS, 1, 1),
        output_shapes=[(tokens, outputs)],
        output_dtypes=[x.dtype],
    )
    return out


def attend(
    heads: Heads,
    qkv: mx.array,
    angles: tuple[mx.array, mx.array],
    slots: mx.array,
    starts: mx.array,
    keys: mx.array,
    values: mx.array,
) -> mx.array:
    """See engine.fused.reference.attend.

    The kernel writes into the cache's own memory. MLX does not know that, so the caller keeps
    whatever else reads the cache out of the same evaluation.
    """
    rows, tokens = slots.shape[0], qkv.shape[0]
    width, group = tokens // rows, heads.queries // heads.keys
    chunk = min(width * group, QUERIES)
    names = (*"qkv cosines sines slots starts query_gain key_gain keys values".split(),)
    out: mx.array
    (out,) = _kernel("attend", names)(
        inputs=[
            qkv,
            *angles,
            slots,
            starts,
            *_given(qkv, heads.query_gain, heads.key_gain),
            keys,
            values,
        ],
        template=[
            ("T", qkv.dtype),
            ("D", heads.dim),
            ("GROUP", group),
            ("HEADS", heads.keys),
            ("WIDTH", width),
            ("CHUNK", chunk),
            ("NORM", heads.query_gain is not None),
            ("EPS_BITS", _bits(heads.eps)),
            ("SCALE_BITS", _bits(heads.scale)),
        ],
        grid=(-(-width * group // chunk) * THREADS, heads.keys, rows),
        threadgroup=(THREADS, 1, 1),
        output_shapes=[(tokens, heads.queries * heads.dim)],
        output_dtypes=[qkv.dtype],
    )
    return out


@cache
def _kernel(name: str, inputs: tuple[str, ...]) -> Any:
    folder = Path(__file__).parent
    return mx.fast.cuda_kernel(
        name=f"fm_{name}",
        input_names=inputs,
        output_names=["out"],
        source=(folder / f"{name}.cu").read_text(encoding="utf-8"),
        header=(folder / "pairs.cuh").read_text(encoding="utf-8"),
        ensure_row_contiguous=False,
    )


def _given(like: mx.array, *arrays: mx.array | None) -> list[mx.array]:
    """Return the arrays; what is missing is never read, any array will do."""
    return [like if array is None else array for array in arrays]


def _bits(number: float) -> int:
    """Return a float32 as the integer of the same bits: templates take no floats."""
    bits: int = struct.unpack("<i", struct.pack("<f", number))[0]
    return bits
