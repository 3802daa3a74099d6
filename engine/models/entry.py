"""A model that can be asked for: what registry.toml, a path or a hub name says about it."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from engine.errors import ModelError, UnknownNameError

SOURCE_KINDS = ("pypi", "hf", "path", "layers", "random")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """One model.

    Args:
        name: what a person calls it.
        source: "kind:rest", kind being one of SOURCE_KINDS.
        file: the weights file inside the source, where it is one file.
        sha256: of that file; empty where the source pins nothing.
        revision: branch, tag or commit on the hub.
        licence: an SPDX name where there is one.
        size_bytes: what has to be fetched; None when unknown, 0 when nothing is.
        drafters: draft sources known to suit it: "ngram" or names of models.
    """

    name: str
    source: str
    file: str = ""
    sha256: str = ""
    revision: str = ""
    licence: str = "unknown"
    size_bytes: int | None = None
    drafters: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in SOURCE_KINDS or not self.place:
            kinds = ", ".join(f"{kind}:..." for kind in SOURCE_KINDS)
            raise ModelError(f"model {self.name!r}: source {self.source!r} must be one of {kinds}")

    @property
    def kind(self) -> str:
        """The part of the source before the colon."""
        return self.source.partition(":")[0]

    @property
    def place(self) -> str:
        """The part of the source after the colon."""
        return self.source.partition(":")[2]


@cache
def entries() -> dict[str, ModelEntry]:
    """Return every entry of registry.toml by name."""
    text = resources.files(__package__).joinpath("registry.toml").read_text("utf-8")
    return {name: _entry(name, values) for name, values in tomllib.loads(text).items()}


def _entry(name: str, values: dict[str, Any]) -> ModelEntry:
    known = {item.name for item in fields(ModelEntry)} - {"name"}
    if unknown := set(values) - known:
        raise ModelError(f"registry.toml, {name}: unknown key {min(unknown)!r}")
    return ModelEntry(name=name, **{**values, "drafters": tuple(values.get("drafters", ()))})


def find_entry(name: str) -> ModelEntry:
    """Return the entry for a registry name, "hf:OWNER/REPO", "path:PLACE", or a path.

    Raises:
        UnknownNameError: nothing is known under this name; the text lists the names that exist.
        ModelError: it looks like a path, and nothing is there.
    """
    if name in entries():
        return entries()[name]
    kind = name.partition(":")[0]
    if kind == "hf":
        return ModelEntry(name=name, source=name, revision="main", drafters=("ngram",))
    path = Path(name.removeprefix("path:")).expanduser()
    if path.exists():
        return ModelEntry(name=name, source=f"path:{path}", size_bytes=0, drafters=("ngram",))
    if kind == "path" or os.sep in name or path.suffix == ".gguf":
        raise ModelError(f"{path}: no such model folder or GGUF file; check the path")
    raise UnknownNameError("model", name, entries())
