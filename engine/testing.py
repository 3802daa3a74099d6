"""Small real parts for tests: a tiny model, a model that follows a script, a drafter that does.

They go through the same loop as everything else; nothing of the engine is replaced.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.nn.layers.base import Module
from numpy.typing import NDArray

from engine.draft.source import DraftRequest, Proposal
from engine.kv_budget import KvCosts, Rectangle
from engine.models.adapter_fit import linear_shape
from engine.models.layer_tree import named_layers
from engine.models.load import LoadedModel, load_model
from engine.request import Request, SamplingParams
from engine.sequence import Sequence

CLEAR = 30.0
"""Score of the scripted token above all others: no rounding and no mild noise changes it."""


@cache
def tiny_model() -> LoadedModel:
    """Return the registry's two-layer random model with its byte tokenizer."""
    return load_model("tiny-thinking")


def write_adapter(
    folder: Path,
    model: LoadedModel,
    seed: int = 0,
    *,
    rank: int = 4,
    layers: tuple[str, ...] = ("q_proj", "v_proj", "down_proj"),
    strength: float = 0.5,
) -> Path:
    """Write a random LoRA adapter as MLX-LM does and return its folder.

    Args:
        layers: last names of the layers it touches, in every block.
        strength: deviation of what it adds, in units of the layer's input.
    """
    draw = np.random.default_rng(seed)
    weights: dict[str, mx.array] = {}
    for path, layer in named_layers(model.model).items():
        if path.rpartition(".")[2] in layers:
            outputs, inputs = linear_shape(layer)
            down = draw.standard_normal((inputs, rank)) * inputs**-0.5
            up = draw.standard_normal((rank, outputs)) * rank**-0.5
            weights[f"{path}.lora_a"] = mx.array(down.astype(np.float32))
            weights[f"{path}.lora_b"] = mx.array(up.astype(np.float32))
    parameters = {"rank": rank, "scale": strength, "dropout": 0.0}
    config = {"fine_tune_type": "lora", "num_layers": -1, "lora_parameters": parameters}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(folder / "adapters.safetensors"), weights)
    return folder


class TableModel(Module):
    """Scores what follows a token by the token alone.

    It writes to its cache as a real layer does, so that slots are exercised.

    Args:
        table: logits after each token, [vocab, vocab].
    """

    def __init__(self, table: NDArray[np.float32]) -> None:
        init: Any = super().__init__  # has no annotations
        init()
        self.table = mx.array(table)
        self.layers: list[None] = [None]

    def __call__(self, ids: mx.array, cache: list[Any] | None = None) -> mx.array:
        """Return logits [rows, width, vocab]."""
        if cache is not None:
            new = ids.astype(mx.float32)[:, None, :, None]
            cache[0].update_and_fetch(new, new)
        return self.table[ids]


def table_model(table: NDArray[np.float32]) -> LoadedModel:
    """Return a model of the tiny model's tokenizer that scores by a table, [vocab, vocab]."""
    return replace(
        tiny_model(),
        name="table",
        model=TableModel(table),
        vocab_size=table.shape[1],
        num_layers=1,
        config={},
        path=None,
    )


def scripted_model(text: str, *, end: int | None = None) -> LoadedModel:
    """Return a model that answers the prompt `prompt_of(model)` with `text`, then an end token.

    Args:
        text: ASCII, every character at most once.
        end: which end token; None takes the smallest.
    """
    tiny = tiny_model()
    ids = [start_id(tiny), *tiny.tokenizer.encode(text)]
    assert len(set(ids)) == len(ids), "a scripted token needs one successor"
    last = min(tiny.eos_ids) if end is None else end
    follows = np.full(tiny.vocab_size, last)
    follows[ids] = [*ids[1:], last]
    table = np.zeros((tiny.vocab_size, tiny.vocab_size), dtype=np.float32)
    table[np.arange(tiny.vocab_size), follows] = CLEAR
    return replace(table_model(table), name="scripted")


def start_id(model: LoadedModel) -> int:
    """Return the token a scripted answer follows on."""
    return model.tokenizer.encode("\x01")[0]


def request_for(model: LoadedModel, text: str = "\x01", **settings: Any) -> Request:
    """Return a request on plain text; `seed` and `temperature` go to its sampling parameters."""
    sampling = {key: settings.pop(key) for key in ("seed", "temperature") if key in settings}
    return Request(
        prompt_ids=tuple(model.tokenizer.encode(text)),
        sampling=SamplingParams(**sampling),
        **settings,
    )


class ScriptedDrafter:
    """Proposes whatever a function of the row says, right or wrong.

    Attributes:
        commits: accepted counts, in order.
        open_rows: rows proposed for and not closed yet.
    """

    def __init__(self, propose: Callable[[Sequence], list[int] | Proposal]) -> None:
        self._propose = propose
        self.commits: list[int] = []
        self.open_rows: set[int] = set()

    def open(self, target: LoadedModel) -> None:
        """Nothing to bind."""

    @property
    def kv_costs(self) -> KvCosts:
        """It keeps no cache."""
        return KvCosts(per_token=0)

    def make_room(self, room: Rectangle) -> None:
        """It keeps no cache."""

    def propose(self, requests: Rows[DraftRequest]) -> list[Proposal]:
        """Return the script's tokens, uncut: the engine has to cope."""
        self.open_rows |= {id(request.sequence) for request in requests}
        scripts = [self._propose(request.sequence) for request in requests]
        return [item if isinstance(item, Proposal) else Proposal(item) for item in scripts]

    def commit(self, sequence: Sequence, num_accepted: int) -> None:
        """Record it."""
        self.commits.append(num_accepted)

    def close(self, sequence: Sequence) -> None:
        """Forget the row."""
        self.open_rows.discard(id(sequence))

    def token_s(self, rows: int) -> float:
        """A script costs nothing."""
        return 0.0
