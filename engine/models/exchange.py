"""Functions that mlx-lm's model files call, exchanged for ours in one model only.

A model file names its functions as globals of its module, which all models of the process share. A
layer of this model gets a class of its own instead, whose __call__ is the same code with another
function under the name; mlx-lm's modules and all other models stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import mlx.nn as nn
from mlx_lm.models import activations, base

from engine.models import vector_math

Functions = Mapping[Callable[..., Any], Callable[..., Any]]

VECTOR_MATH: Functions = {
    activations.swiglu: vector_math.swiglu,
    base.scaled_dot_product_attention: vector_math.attention,
}
"""mlx-lm's function -> ours, which computes the same."""


def exchange_functions(model: nn.Module, functions: Functions) -> None:
    """Let every layer of a model call `functions[f]` where its own code names a global f."""
    classes: dict[type[nn.Module], type[nn.Module]] = {}
    walk: Any = model.named_modules  # has no annotations
    for _, module in walk():
        kind = type(module)
        if kind not in classes:
            classes[kind] = _class_with(kind, functions)
        module.__class__ = classes[kind]


def _class_with(kind: type[nn.Module], functions: Functions) -> type[nn.Module]:
    call = vars(kind).get("__call__", None)
    if not isinstance(call, FunctionType):
        return kind
    named = {name: call.__globals__.get(name) for name in call.__code__.co_names}
    ours = {name: functions[f] for name, f in named.items() if callable(f) and f in functions}
    if not ours:
        return kind
    other = FunctionType(
        call.__code__,
        {**call.__globals__, **ours},
        call.__name__,
        call.__defaults__,
        call.__closure__,
    )
    other.__kwdefaults__ = call.__kwdefaults__
    return type(kind.__name__, (kind,), {"__call__": other, "__module__": kind.__module__})
