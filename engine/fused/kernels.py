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
from engine.fused.parts import FEW_TOKENS, MANY_TOKENS, Heads, Projection

TILE_TOKENS = 8
"""Tokens of a tile of `project`; a block takes a tile or more, and reads every weight once."""

SMALL_BYTES = 8 << 20
"""Weights up to which a block takes one tile: they stay in the L2 cache, and more blocks share the
work."""

MOST_TILES = MANY_TOKENS // TILE_TOKENS
"""Tiles a block takes on larger weights once there are more than FEW_TOKENS, up to which one tile a
block is as fast."""

DTYPES = frozenset({mx.bfloat16, mx.float16})

THREADS = 256
MOST_WIDTH = 16
"""Tokens a row may feed `attend`; MOST in attend.cu."""

QUERIES = 4
"""Most queries one block of `attend` answers."""

Template = tuple[tuple[str, Any], ...]
"""Names and values for which a kernel is compiled."""


def takes(parts: Projection, tokens: int) -> bool:
    """Return whether `project` computes so many tokens itself and does not leave them to cuBLAS."""
    return tokens <= parts.most_tokens or parts.weight.nbytes <= SMALL_BYTES


def project_template(parts: Projection, tokens: int, dtype: mx.Dtype) -> Template:
    """Return what the kernel of `project` is compiled for, for this many tokens."""
    is_one_tile = tokens <= FEW_TOKENS or parts.weight.nbytes <= SMALL_BYTES
    return (
        ("T", dtype),
        ("GATED", parts.gated),
        ("TILES", 1 if is_one_tile else MOST_TILES),
        ("EPS_BITS", _bits(parts.eps)),
    )


def attend_template(heads: Heads, width: int, dtype: mx.Dtype) -> Template:
    """Return what the kernel of `attend` is compiled for, for rows that feed `width` tokens."""
    group = heads.queries // heads.keys
    return (
        ("T", dtype),
        ("D", heads.dim),
        ("GROUP", group),
        ("HEADS", heads.keys),
        ("CHUNK", min(width * group, QUERIES)),
        ("EPS_BITS", _bits(heads.eps)),
        ("SCALE_BITS", _bits(heads.scale)),
    )


def project(parts: Projection, x: mx.array, residual: mx.array | None = None) -> mx.array:
    """See engine.fused.reference.project."""
    tokens = x.shape[0]
    if not takes(parts, tokens):
        return reference.project(parts, x, residual)
    outputs = parts.weight.shape[0] // (2 if parts.gated else 1)
    template = project_template(parts, tokens, x.dtype)
    together = TILE_TOKENS * dict(template)["TILES"]
    none = _nothing(x.dtype)
    out: mx.array
    (out,) = _kernel("project", "x weight gain bias residual")(
        inputs=[
            x,
            parts.weight,
            none if parts.gain is None else parts.gain,
            none if parts.bias is None else parts.bias,
            none if residual is None else residual,
        ],
        template=list(template),
        grid=(-(-tokens // together) * THREADS, -(-outputs // 16), 1),
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
    assert width <= MOST_WIDTH, "the new keys of a row must fit shared memory"
    template = attend_template(heads, width, qkv.dtype)
    chunk = dict(template)["CHUNK"]
    none = _nothing(qkv.dtype)
    out: mx.array
    names = "qkv cosines sines slots starts query_gain key_gain keys values"
    (out,) = _kernel("attend", names)(
        inputs=[
            qkv,
            *angles,
            slots,
            starts,
            none if heads.query_gain is None else heads.query_gain,
            none if heads.key_gain is None else heads.key_gain,
            keys,
            values,
        ],
        template=list(template),
        grid=(-(-width * group // chunk) * THREADS, heads.keys, rows),
        threadgroup=(THREADS, 1, 1),
        output_shapes=[(tokens, heads.queries * heads.dim)],
        output_dtypes=[qkv.dtype],
    )
    return out


@cache
def _kernel(name: str, inputs: str) -> Any:
    folder = Path(__file__).parent
    return mx.fast.cuda_kernel(
        name=f"fm_{name}",
        input_names=inputs.split(),
        output_names=["out"],
        source=(folder / f"{name}.cu").read_text(encoding="utf-8"),
        header=(folder / "pairs.cuh").read_text(encoding="utf-8"),
        ensure_row_contiguous=False,
    )


@cache
def _nothing(dtype: mx.Dtype) -> mx.array:
    """Return what stands for an input that is not given: one element."""
    none = mx.zeros((1,), dtype)
    mx.eval(none)
    return none


def _bits(number: float) -> int:
    """Return a float32 as the integer of the same bits: templates take no floats."""
    bits: int = struct.unpack("<i", struct.pack("<f", number))[0]
    return bits
