"""Which kernels a step asks for, and the few steps that ask for all of them.

A kernel is compiled for each set of template values, and MLX fuses what is left around the products
that go to cuBLAS. Both happen at first use.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engine.fused import kernels
from engine.fused.parts import Parts, Projection

Variant = tuple[str, kernels.Template]
"""A kernel and its template values; for products that cuBLAS takes, what is fused around them."""


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """A decode step of `rows` rows that feeds `width` tokens to each."""

    rows: int
    width: int


def variants(parts: Parts, shape: Shape) -> frozenset[Variant]:
    """Return every kernel that a step of this shape asks for."""
    dtype, tokens = parts.head.weight.dtype, shape.rows * shape.width
    found = {_project(parts.head, tokens, adds=False)}
    for layer in parts.layers:
        found |= {_project(each, tokens, adds=False) for each in (layer.qkv, layer.gate_up)}
        found |= {_project(each, tokens, adds=True) for each in (layer.out, layer.down)}
        found.add(("attend", kernels.attend_template(layer.heads, shape.width, dtype)))
    return frozenset(found)


def covering(parts: Parts, shapes: Iterable[Shape]) -> list[Shape]:
    """Return few of `shapes`, small ones first, that ask for every kernel that any of them does."""
    chosen: list[Shape] = []
    known: set[Variant] = set()
    for shape in sorted(shapes):
        new = variants(parts, shape) - known
        if new:
            chosen.append(shape)
            known |= new
    return chosen


def _project(parts: Projection, tokens: int, adds: bool) -> Variant:
    if kernels.takes(parts, tokens):
        return "project", kernels.project_template(parts, tokens, parts.weight.dtype)
    fused = (("GATED", parts.gated), ("BIAS", parts.bias is not None), ("ADDS", adds))
    return "plain product", fused
