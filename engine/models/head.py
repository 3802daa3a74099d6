"""Split a model into backbone and output head, so that a prompt pays for one row of logits.

The head of a small model is a fifth of its step; a prompt of 200 tokens needs it once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn

Backbone = Callable[[mx.array, Any], mx.array]
Head = Callable[[mx.array], mx.array]

PROBE_IDS = (0, 1)


def split_head(model: nn.Module) -> tuple[Backbone, Head]:
    """Return (backbone, head) with `model(ids, cache) == head(backbone(ids, cache))`.

    The usual layout of mlx-lm (`model.model` and `lm_head` or a tied embedding) is tried on two
    tokens and taken only when its logits are bit-equal to the model's own; any other model (soft
    caps, multipliers after the head, unknown names) keeps its head inside the backbone.
    Waits for the device.
    """
    backbone = getattr(model, "model", None)
    head = _usual_head(model, backbone)
    if backbone is not None and head is not None:
        ids = mx.array([PROBE_IDS])
        if bool(mx.array_equal(model(ids), head(backbone(ids)))):
            return backbone, head
    return model, _identity


def _usual_head(model: nn.Module, backbone: nn.Module | None) -> Head | None:
    embedding = getattr(backbone, "embed_tokens", None)
    fallback: Head | None = getattr(embedding, "as_linear", None)
    head: Head | None = getattr(model, "lm_head", fallback)
    return head


def _identity(hidden: mx.array) -> mx.array:
    return hidden
