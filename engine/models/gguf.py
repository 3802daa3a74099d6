"""The header of a GGUF file, read so defensively that no damaged file gets past it.

MLX trusts what a GGUF header says, and a truncated file ends the process. So the header, and the
place of every tensor in the file, are checked here first, in plain Python.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from engine.errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
MAX_ARRAY_DEPTH = 4
REMEDY = "fetch the file again"
INSTEAD = "use the model's safetensors folder instead"

SCALARS: dict[int, struct.Struct] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
"""Value type number -> layout; 8 is a string and 9 an array."""

STRING_TYPE, ARRAY_TYPE = 8, 9


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor's entry in the header.

    Args:
        shape: slowest axis first, as numpy and MLX count (the file stores the reverse).
        type_name: "F32", "Q4_1", ...
        start: first byte in the file.
        num_bytes: length in the file.
    """

    name: str
    shape: tuple[int, ...]
    type_name: str
    start: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A checked header: every tensor lies inside the file."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]

    def value(self, key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """Return a metadata value of the wanted type.

        Raises:
            ModelError: the key is missing and there is no default, or the type is another.
        """
        found = self.metadata.get(key, default)
        if found is None:
            raise ModelError(f"{self.path}: GGUF metadata {key!r} is missing; {REMEDY}")
        if not isinstance(found, kind) or (isinstance(found, bool) and kind is int):
            raise ModelError(
                f"{self.path}: GGUF metadata {key!r} is a {type(found).__name__}; {REMEDY}"
            )
        return found


def read_gguf(path: Path) -> GgufFile:
    """Read and check the header of a GGUF file; tensor data is not touched.

    Raises:
        ModelError: not a GGUF file, truncated, damaged, or of a version this cannot read.
    """
    try:
        with path.open("rb") as stream:
            if path.stat().st_size == 0:
                raise ModelError(f"{path}: the file is empty; {REMEDY}")
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as view:
                return _Cursor(path, view).file()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from error


class _Cursor:
    """Walks the header; every read is checked against the end of the file."""

    def __init__(self, path: Path, view: mmap.mmap) -> None:
        self.path = path
        self.view = view
        self.size = len(view)
        self.place = 0

    def file(self) -> GgufFile:
        if self.view[: len(MAGIC)] != MAGIC:
            raise ModelError(f"{self.path}: not a GGUF file (wrong first bytes); {REMEDY}")
        self.place = len(MAGIC)
        version = self.scalar(4)
        if version not in VERSIONS:
            known = " and ".join(str(item) for item in VERSIONS)
            raise ModelError(
                f"{self.path}: GGUF version {version} is unknown; convert it to version {known}"
            )
        num_tensors = self.count("tensor count", 24)
        num_values = self.count("metadata count", 12)
        metadata = dict(self.pair() for _ in range(num_values))
        entries = [self.tensor_entry() for _ in range(num_tensors)]
        return GgufFile(self.path, metadata, self.placed(entries, metadata))

    def damaged(self, what: str) -> ModelError:
        return ModelError(f"{self.path}: truncated or damaged GGUF ({what}); {REMEDY}")

    def take(self, num_bytes: int, what: str) -> bytes:
        end = self.place + num_bytes
        if end > self.size:
            raise self.damaged(f"{what} ends at byte {end} of {self.size}")
        piece = self.view[self.place : end]
        self.place = end
        return piece

    def scalar(self, kind: int) -> Any:
        layout = SCALARS[kind]
        return layout.unpack(self.take(layout.size, "a value"))[0]

    def count(self, what: str, least_bytes: int) -> int:
        """Read a count of things that take at least `least_bytes` bytes each."""
        found: int = self.scalar(10)
        if found * least_bytes > self.size - self.place:
            raise self.damaged(f"{what} {found} does not fit the file")
        return found

    def text(self) -> str:
        piece = self.take(self.count("string length", 1), "a string")
        # Token texts are bytes to llama.cpp; a file with a broken one is still usable.
        return piece.decode("utf-8", "replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == STRING_TYPE:
            return self.text()
        if kind in SCALARS:
            return self.scalar(kind)
        if kind != ARRAY_TYPE or depth == MAX_ARRAY_DEPTH:
            raise self.damaged(f"metadata type {kind} is unknown")
        item_kind: int = self.scalar(4)
        if item_kind in SCALARS:
            return self.scalars(item_kind)
        return [self.value(item_kind, depth + 1) for _ in range(self.count("array length", 8))]

    def scalars(self, kind: int) -> list[Any]:
        layout = SCALARS[kind]
        length = self.count("array length", layout.size)
        piece = self.take(length * layout.size, "an array")
        return [item for (item,) in layout.iter_unpack(piece)]

    def pair(self) -> tuple[str, Any]:
        key = self.text()
        return key, self.value(self.scalar(4))

    def tensor_entry(self) -> tuple[str, tuple[int, ...], str, int]:
        name = self.text()
        num_dimensions = self.scalar(4)
        if not 1 <= num_dimensions <= MAX_DIMENSIONS:
            raise self.damaged(f"tensor {name!r} has {num_dimensions} dimensions")
        shape = tuple(self.scalar(10) for _ in range(num_dimensions))[::-1]
        return name, shape, self.type_name(name), self.scalar(10)

    def type_name(self, tensor: str) -> str:
        number = self.scalar(4)
        try:
            return GGMLQuantizationType(number).name
        except ValueError as error:
            raise self.damaged(f"tensor {tensor!r} has the unknown type {number}") from error

    def placed(
        self, entries: list[tuple[str, tuple[int, ...], str, int]], metadata: Mapping[str, Any]
    ) -> dict[str, GgufTensor]:
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self.damaged(f"alignment is {alignment!r}")
        base = -(-self.place // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for name, shape, type_name, offset in entries:
            num_bytes = self.tensor_bytes(name, shape, type_name)
            if offset % alignment or base + offset + num_bytes > self.size:
                raise self.damaged(
                    f"tensor {name!r} ends at byte {base + offset + num_bytes} of {self.size}"
                )
            if name in tensors:
                raise self.damaged(f"tensor {name!r} appears twice")
            tensors[name] = GgufTensor(name, shape, type_name, base + offset, num_bytes)
        return tensors

    def tensor_bytes(self, name: str, shape: tuple[int, ...], type_name: str) -> int:
        block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[type_name]]
        if 0 in shape or shape[-1] % block:
            raise self.damaged(f"tensor {name!r} has the shape {shape} for type {type_name}")
        return prod(shape) // block * block_bytes
