"""Plain arithmetic computes what MLX's exponentials do."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models import activations, base

from engine.models import vector_math
from engine.models.vector_math import FEWEST, PIECE, attention, exp, swiglu


def test_exp_is_right_over_its_whole_range() -> None:
    x = np.linspace(-87.3, 88, 400_001, dtype=np.float32)
    ours = np.array(exp(mx.array(x)), dtype=np.float64)
    assert np.max(np.abs(ours / np.exp(x.astype(np.float64)) - 1)) < 4e-6


def test_exp_ends_at_zero_and_one_and_below_infinity() -> None:
    ends = exp(mx.array([-np.inf, -1e30, -100.0, 0.0, -0.0, 89.0, 1e30])).tolist()
    assert ends[:5] == [0.0, 0.0, 0.0, 1.0, 1.0]
    assert 1e38 < ends[5] == ends[6] < np.inf


@pytest.mark.parametrize("shape", [(1, 1, 96), (64, 1, 192), (2, 700, 1536)], ids=str)
def test_swiglu_is_mlx_lms(shape: tuple[int, ...]) -> None:
    keys = mx.random.split(mx.random.key(2), 2)
    gate, x = (4 * mx.random.normal(shape, key=key) for key in keys)
    ours, theirs = swiglu(gate, x), activations.swiglu(gate, x)
    assert ours.shape == theirs.shape
    assert mx.allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_gate_far_below_zero_gives_zero() -> None:
    gate = mx.full((1, FEWEST), -200.0)
    assert not mx.any(mx.abs(swiglu(gate, mx.ones_like(gate))) > 1e-30)


def mask_of(kind: str, rows: int, width: int, extent: int) -> mx.array | str | None:
    starts = mx.array([(7 * row) % (extent - width + 1) for row in range(rows)])
    seen = mx.arange(extent) <= starts[:, None, None, None] + mx.arange(width)[:, None]
    masks = {
        "rows": seen,
        "shared": seen[:1],
        "added": mx.where(seen, 0.0, -mx.inf),
        "flat": seen[0, 0],
        "heads": mx.broadcast_to(seen, (rows, 6, width, extent)),
        "keys": mx.arange(extent)[None] < extent - 5,
        "keys of rows": mx.arange(extent) < extent - mx.arange(rows)[:, None, None, None],
    }
    return {"none": None, "causal": "causal"}.get(kind, masks.get(kind))


@settings(max_examples=60)
@given(
    kind=st.sampled_from(
        ["rows", "shared", "added", "flat", "heads", "keys", "keys of rows", "none", "causal"]
    ),
    size=st.sampled_from(
        [(1, 1, 40), (1, 1, 3000), (9, 1, 300), (3, 8, 257), (2, 100, 900), (1, 64, 5000)]
    ),
    kv_heads=st.sampled_from([1, 2, 6]),
    piece=st.sampled_from([PIECE, 20_000, 100]),
)
def test_attention_is_mlx_lms(
    kind: str, size: tuple[int, int, int], kv_heads: int, piece: int
) -> None:
    rows, width, extent = size
    keys = mx.random.split(mx.random.key(rows * extent), 3)
    q = mx.random.normal((rows, 6, width, 32), key=keys[0])
    k, v = (mx.random.normal((rows, kv_heads, extent, 32), key=key) for key in keys[1:])
    mask = mask_of(kind, rows, width, extent)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vector_math, "PIECE", piece)
        ours = attention(q, k, v, cache=None, scale=0.3, mask=mask)
    theirs = base.scaled_dot_product_attention(q, k, v, cache=None, scale=0.3, mask=mask)
    assert ours.shape == theirs.shape
    assert mx.allclose(ours, theirs, atol=5e-6)


def test_a_position_that_may_not_be_looked_at_has_no_say() -> None:
    q = mx.random.normal((4, 6, 1, 32), key=mx.random.key(1))
    k = mx.random.normal((4, 6, 700, 32), key=mx.random.key(2))
    mask = (mx.arange(700) < 600)[None, None, None]
    outputs = []
    for stale in (0.0, 1e6):
        held = mx.where((mx.arange(700) < 600)[:, None], k, stale)
        outputs.append(attention(q, held, held, cache=None, scale=0.3, mask=mask))
    assert mx.array_equal(*outputs)
    assert mx.all(mx.isfinite(outputs[0]))
