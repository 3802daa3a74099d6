"""The model cache: folders that appear whole or not at all, made by one process at a time.

A folder is made in a staging place and renamed when its manifest is written. A lock that the
kernel drops when its holder dies makes whoever comes second wait, and whatever staging a dead
process left behind is cleared by the next one that holds the lock.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import DownloadError
from engine.models.watch import Progress, watched
from engine.paths import cache_dir

MANIFEST = "fm.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """What the manifest of a finished folder says.

    Args:
        digest: sha256 of the weights the folder was made from.
        source: where they came from.
        recipe: how the folder was made; another recipe means it is made again.
    """

    digest: str
    source: str
    recipe: str


def store_dir() -> Path:
    """Return the folder models are kept in; it need not exist."""
    return cache_dir() / "models"


def stored(key: str, recipe: str) -> Path | None:
    """Return the finished folder of `key`, None when it is absent, damaged or outdated."""
    folder = store_dir() / key
    manifest = _manifest(folder)
    if manifest.get("recipe") != recipe:
        return None
    sizes: Mapping[str, int] = manifest.get("files", {})
    complete = all(_size(folder / name) == size for name, size in sizes.items())
    return folder if complete else None


def read_product(folder: Path) -> Product:
    """Return what a finished folder's manifest says; it must be one that `stored` returned."""
    manifest = _manifest(folder)
    return Product(digest=manifest["digest"], source=manifest["source"], recipe=manifest["recipe"])


def obtain(
    key: str,
    recipe: str,
    make: Callable[[Path], Product],
    progress: Progress | None = None,
    expected_bytes: int | None = None,
) -> Path:
    """Return the folder of `key`, made by `make` in a staging folder when it is not there yet.

    Args:
        key: place below the store, "name/what".
        recipe: how it is made; must equal the recipe of the product `make` returns.
        progress: told the bytes on disk while this or another process makes the folder.

    Raises:
        DownloadError: the cache folder cannot be written, or is full.
    """
    if found := stored(key, recipe):
        return found
    try:
        with watched(lambda: _staging_folders(key), progress, expected_bytes), _locked(key):
            return stored(key, recipe) or _make(key, make, expected_bytes or 0)
    except OSError as error:
        raise _cache_error(error) from error


def _make(key: str, make: Callable[[Path], Product], expected_bytes: int) -> Path:
    _clear_staging(key)
    if shutil.disk_usage(store_dir()).free < expected_bytes:
        raise OSError(
            errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} for {expected_bytes} bytes", store_dir()
        )
    staging = _staging_root() / f"{_flat(key)}.{os.getpid()}.{time.monotonic_ns()}"
    staging.mkdir(parents=True)
    try:
        product = make(staging)
        _write_manifest(staging, product)
        final = store_dir() / key
        final.parent.mkdir(parents=True, exist_ok=True)
        if final.exists():
            final.rename(staging.with_suffix(".old"))
        staging.rename(final)
    finally:
        _clear_staging(key)
    return final


def _write_manifest(folder: Path, product: Product) -> None:
    files = {
        str(path.relative_to(folder)): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    values = {
        "digest": product.digest,
        "source": product.source,
        "recipe": product.recipe,
        "files": files,
    }
    (folder / MANIFEST).write_text(json.dumps(values, indent=1) + "\n")


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _flat(key: str) -> str:
    return key.replace("/", "--")


def _staging_root() -> Path:
    return store_dir() / ".staging"


def _staging_folders(key: str) -> list[Path]:
    return list(_staging_root().glob(f"{_flat(key)}.*"))


def _clear_staging(key: str) -> None:
    for folder in _staging_folders(key):
        # A killed process's child may still be writing there; the rest goes the next time.
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(key: str) -> Iterator[None]:
    folder = store_dir() / ".locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{_flat(key)}.lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _cache_error(error: OSError) -> DownloadError:
    place = error.filename or store_dir()
    remedy = "set FM_CACHE_DIR to a folder that can be written"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = f"free space in {store_dir()} or set FM_CACHE_DIR to another disk"
    return DownloadError(f"{place}: {error.strerror or error}; {remedy}")
