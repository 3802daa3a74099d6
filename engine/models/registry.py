"""The models known by name: listing them, and fetching one ahead of its use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.backend import default_dtype
from engine.models.entry import ModelEntry, entries, find_entry
from engine.models.pull import is_cached, locate
from engine.models.watch import Progress

__all__ = ["ModelEntry", "ModelRow", "find_entry", "list_models", "model_rows", "pull"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """One line of `fm models`.

    Args:
        size_bytes: what is fetched; 0 when it is made here, None when unknown.
        cached: it loads without the network.
    """

    name: str
    source: str
    revision: str
    licence: str
    size_bytes: int | None
    cached: bool
    drafters: tuple[str, ...]


def list_models() -> tuple[ModelEntry, ...]:
    """Return every registered model, the default one first."""
    return tuple(entries().values())


def model_rows() -> list[ModelRow]:
    """Return the lines of `fm models`; asks the disk, never the network."""
    return [
        ModelRow(
            name=entry.name,
            source=entry.source,
            revision=entry.revision or entry.sha256[:12],
            licence=entry.licence,
            size_bytes=entry.size_bytes,
            cached=is_cached(entry),
            drafters=entry.drafters,
        )
        for entry in list_models()
    ]


def pull(name: str, progress: Progress | None = None) -> Path:
    """Fetch, verify and convert a model; returns the folder it loads from.

    Calling it again, after it ended, failed or was killed, is always right. `progress` is called
    from another thread while bytes arrive, and once at the end.

    Raises:
        UnknownNameError: no such model; the text lists those that exist.
        DownloadError: it could not be fetched, verified or stored.
        ModelError: it was fetched and cannot be used.
    """
    entry = find_entry(name)
    place = locate(entry, default_dtype(), progress)
    if progress is not None and entry.size_bytes:
        progress(entry.size_bytes, entry.size_bytes)
    return place.folder
