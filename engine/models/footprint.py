"""How many bytes of a model's weights one decode step has to read: what bounds a small batch.

Counted from the arrays in memory, so packed weights with their scales and biases are what they
are. An embedding is a look-up of a row a token, but for one that is the output head too. Of
experts, a step reads at least those that one token is routed to.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear

from engine.models.load import LoadedModel

EMBEDDINGS = (nn.Embedding, nn.QuantizedEmbedding)
EXPERTS = (SwitchLinear, QuantizedSwitchLinear)

ROUTED = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "top_k_experts",
    "moe_topk",
    "moe_top_k",
    "moe_k",
)
"""Names under which configs say how many experts a token is routed to."""


def step_weight_bytes(loaded: LoadedModel) -> int | None:
    """Return the least bytes of weights that a forward of one token reads; computes nothing.

    None for a model of experts whose config does not say how many a token is routed to.
    """
    modules = list(_modules(loaded.model))
    skipped: dict[int, float] = {}
    has_head = any(_is_head(module, loaded.vocab_size) for module in modules)
    for module in modules:
        share = 1.0
        if isinstance(module, EMBEDDINGS):
            is_tied = not has_head and module.weight.shape[0] == loaded.vocab_size
            share = 1.0 if is_tied else 0.0
        elif isinstance(module, EXPERTS):
            routed = _routed(loaded.config)
            if routed is None:
                return None
            share = min(1.0, routed / module.weight.shape[0])
        skipped |= {id(array): array.nbytes * (1 - share) for array in _arrays(module)}
    held = {id(array): array.nbytes for array in _arrays(loaded.model)}
    return round(sum(held.values()) - sum(skipped.values()))


def _modules(model: nn.Module) -> Iterator[nn.Module]:
    walk: Any = model.named_modules  # has no annotations
    for _, module in walk():
        yield module


def _arrays(module: nn.Module) -> list[mx.array]:
    """Return the weights of a module and of all in it; what begins with "_" is none."""
    parameters: Any = module.parameters  # has no annotations
    named: dict[str, mx.array] = dict(tree_flatten(parameters()))
    return list(named.values())


def _is_head(module: nn.Module, vocab_size: int) -> bool:
    """True for a layer of its own that gives the logits."""
    is_linear = isinstance(module, nn.Linear | nn.QuantizedLinear)
    return is_linear and module.weight.shape[0] == vocab_size


def _routed(config: dict[str, Any]) -> int | None:
    """Return how many experts a token is routed to, as the config has it."""
    for section in (config, config.get("text_config") or {}):
        for name in ROUTED:
            if isinstance(section.get(name), int):
                return int(section[name])
    return None
