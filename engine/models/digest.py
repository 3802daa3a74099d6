"""The sha256 of weights, remembered so that a large file is read once, not at every load."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from engine.models.store import store_dir


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def known_sha256(path: Path) -> str:
    """Return the sha256 of a file in hex, from memory while path, size and time are the same."""
    status = path.stat()
    label = f"{path.resolve()}|{status.st_size}|{status.st_mtime_ns}"
    note = store_dir() / ".digests" / hashlib.sha256(label.encode()).hexdigest()
    if note.is_file() and len(found := note.read_text()) == 64:
        return found
    found = file_sha256(path)
    _remember(note, found)
    return found


def folder_digest(folder: Path) -> str:
    """Return one sha256 for a folder's safetensors files, by name and content; "" without any."""
    files = sorted(folder.glob("model*.safetensors"))
    sums = [f"{path.name} {known_sha256(path)}" for path in files]
    return hashlib.sha256("\n".join(sums).encode()).hexdigest() if sums else ""


def _remember(note: Path, digest: str) -> None:
    """Write the note whole; a cache that cannot be written only costs time."""
    draft = note.with_name(f"{note.name}.{os.getpid()}")
    with suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(digest)
        draft.replace(note)
