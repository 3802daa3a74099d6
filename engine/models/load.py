"""From a model's name to something the engine can run."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm import utils as mlx_lm_utils

from engine.backend import WeightLayout, backend_info, default_dtype, weight_layout
from engine.errors import ModelError, SettingError
from engine.models.columns import column_weights
from engine.models.entry import find_entry
from engine.models.exchange import VECTOR_MATH, exchange_functions
from engine.models.pull import locate
from engine.models.rotary import share_rotations
from engine.models.safetensors import check_weights
from engine.models.tiled import tile_weights
from engine.models.tokenizer import Tokenizer
from engine.models.vocabulary import check_same_vocabulary as check_same_tokens
from engine.switches import allows

DTYPES = ("float32", "bfloat16", "float16")

ARRANGE: Mapping[WeightLayout, Callable[[Module], None]] = {
    "rows": lambda _model: None,
    "columns": column_weights,
    "tiles": tile_weights,
}
"""What puts a model's float32 weights into a layout."""

_alive: weakref.WeakValueDictionary[tuple[str, str], Module] = weakref.WeakValueDictionary()
"""(registry name, dtype) -> a model in memory, from which a cut model takes its arrays."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory, with all that is known about it.

    Args:
        model: an MLX-LM model: model(ids [rows, length], cache=[...]) -> logits
            [rows, length, vocab].
        eos_ids: tokens that end a row, from config, generation config and tokenizer.
        dtype: float type it computes in; packed weights stay packed.
        vocab_size: width of the logits, which may exceed the tokenizer's vocabulary.
        digest: sha256 that names the weights; "" when unknown.
        source: where they came from.
        path: a folder that mlx_lm.load accepts, None for a model made in memory. Its weights
            have `dtype` when fm converted it; a folder from elsewhere keeps its own.
    """

    name: str
    model: Module = field(repr=False)
    tokenizer: Tokenizer = field(repr=False)
    eos_ids: frozenset[int]
    dtype: str
    vocab_size: int
    num_layers: int
    config: dict[str, Any] = field(repr=False)
    digest: str = ""
    source: str = ""
    path: Path | None = None

    @property
    def context_length(self) -> int | None:
        """Tokens of a prompt and its reply together, at most; None where the model tells none."""
        length = self.config.get("max_position_embeddings")
        return None if length is None else int(length)


def load_model(name: str, *, dtype: str | None = None) -> LoadedModel:
    """Load a model, fetching it first where needed. Waits for the device.

    Args:
        name: a registry name, "hf:OWNER/REPO", "path:PLACE", a folder or a .gguf file.
        dtype: float type to compute in; None takes the backend's.

    Raises:
        UnknownNameError: nothing is known under this name.
        DownloadError: it could not be fetched, verified or stored.
        ModelError: it is damaged or of a kind that cannot be run.
        SettingError: no such dtype.
    """
    found, entry = outline_model(name, dtype=dtype), find_entry(name)
    if found.dtype == "float32":
        _tune(found.model)
    if entry.kind == "layers":
        _share_arrays(found.model, _alive.get((entry.place.rpartition("/")[0], found.dtype)))
    _evaluate(found.model)
    _alive[(name, found.dtype)] = found.model
    return found


def outline_model(name: str, *, dtype: str | None = None) -> LoadedModel:
    """Return all that is known of a model with its weights unread: quick, and of little memory.

    What needs the weights reads them then, slowly and each time; `load_model` is for that.

    Raises:
        UnknownNameError, DownloadError, ModelError, SettingError: as for load_model.
    """
    wanted = dtype or default_dtype()
    if wanted not in DTYPES:
        raise SettingError(f"dtype is {wanted!r}; it must be one of {', '.join(DTYPES)}")
    place = locate(find_entry(name), wanted)
    check_weights(place.folder)
    model, config = _read(place.folder, wanted)
    vocab_size = _logits_width(model)
    tokenizer = _tokenizer(place.folder, vocab_size, _eos_ids(place.folder, config))
    return LoadedModel(
        name=name,
        model=model,
        tokenizer=tokenizer,
        eos_ids=tokenizer.eos_ids,
        dtype=wanted,
        vocab_size=vocab_size,
        num_layers=len(model.layers),
        config=config,
        digest=place.digest,
        source=place.source,
        path=place.folder,
    )


def check_same_vocabulary(target: LoadedModel, draft: LoadedModel) -> None:
    """Raise ModelError unless a drafter's tokens are the target's; padded rows may differ."""
    check_same_tokens(
        target.tokenizer.vocabulary, draft.tokenizer.vocabulary, target.name, draft.name
    )


def _read(folder: Path, dtype: str) -> tuple[Module, dict[str, Any]]:
    """Build the model with its weights cast to `dtype`; nothing is read from disk yet."""
    try:
        model, config = mlx_lm_utils.load_model(folder, lazy=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        detail = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(
            f"{folder}: MLX-LM cannot load it ({detail[:300]}); fetch it again, or convert it with "
            "mlx_lm.convert"
        ) from error
    model.set_dtype(getattr(mx, dtype))
    return model, config


def _tune(model: Module) -> None:
    """Let a float32 model compute the way the backend is fast at."""
    if backend_info().device == "cpu":
        share_rotations(model)
        if allows("FM_VECTOR_MATH"):
            exchange_functions(model, VECTOR_MATH)
    if allows("FM_TILED_WEIGHTS"):
        ARRANGE[weight_layout()](model)


def _share_arrays(model: Module, parent: Module | None) -> None:
    """Use the parent's arrays wherever the model has one of the same name."""
    if parent is None:
        return
    theirs = _named_arrays(parent)
    shared = [(name, theirs[name]) for name in _named_arrays(model)]
    model.update(tree_unflatten(shared))


def _evaluate(model: Module) -> None:
    """Read array by array, so that a cast never holds more than one array twice.

    What a layer keeps beside its weights (rotary frequencies) is computed too: nothing that hangs
    on this thread is left to threads that run the model.
    """
    try:
        for array in (*_named_arrays(model).values(), *_private_arrays(model)):
            mx.eval(array)
    except RuntimeError as error:
        raise ModelError(f"the weights cannot be read ({error}); fetch them again") from error
    mx.clear_cache()


def _named_arrays(model: Module) -> dict[str, mx.array]:
    parameters: Any = model.parameters  # has no annotations
    return dict(tree_flatten(parameters()))


def _private_arrays(model: Module) -> list[mx.array]:
    """Return the arrays that are no parameters: their names begin with "_"."""
    layers: Any = model.modules  # has no annotations
    held = [value for layer in layers() for value in layer.values()]
    return [value for value in held if isinstance(value, mx.array)]


def _logits_width(model: Module) -> int:
    """The shape is known without computing anything."""
    return int(model(mx.array([[0]])).shape[-1])


def _eos_ids(folder: Path, config: Mapping[str, Any]) -> frozenset[int]:
    """End tokens of config.json and generation_config.json together."""
    files = [folder / "config.json", folder / "generation_config.json"]
    named = [json.loads(path.read_text()) for path in files if path.is_file()]
    found: set[int] = set()
    for values in (*named, config):
        ids = values.get("eos_token_id")
        found |= {ids} if isinstance(ids, int) else set(ids or ())
    return frozenset(found)


def _tokenizer(folder: Path, vocab_size: int, eos_ids: frozenset[int]) -> Tokenizer:
    try:
        load: Any = mlx_lm_utils.load_tokenizer  # has no annotations
        wrapper = load(folder, {"trust_remote_code": False}, eos_token_ids=sorted(eos_ids))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        detail = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(f"{folder}: its tokenizer cannot be loaded ({detail[:300]})") from error
    return Tokenizer(wrapper, vocab_size, frozenset(wrapper.eos_token_ids))
