"""A look at safetensors files before MLX reads them: are they whole?"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.errors import ModelError

LENGTH = struct.Struct("<Q")
REMEDY = "fetch the model again"

Header = Mapping[str, Mapping[str, Any]]
"""Tensor name -> what the file says of it; `data_offsets` are two whole numbers."""


def check_weights(folder: Path) -> None:
    """Check every weights file of a folder.

    Raises:
        ModelError: there is none, or one is truncated or damaged.
    """
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise ModelError(
            f"{folder}: no safetensors files; fm loads safetensors and GGUF, no pickled weights"
        )
    for path in files:
        read_header(path)


def read_header(path: Path, remedy: str = REMEDY) -> Header:
    """Return what a safetensors file says of its tensors, once it is known to be whole.

    Args:
        remedy: what a person should do about a damaged file.

    Raises:
        ModelError: it is truncated or damaged.
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as stream:
        first = stream.read(LENGTH.size)
        length = LENGTH.unpack(first)[0] if len(first) == LENGTH.size else size
        if LENGTH.size + length > size:
            raise ModelError(f"{path}: truncated or damaged safetensors header; {remedy}")
        try:
            header = json.loads(stream.read(length))
            tensors = {name: item for name, item in header.items() if name != "__metadata__"}
            ends = [_end(*item["data_offsets"]) for item in tensors.values()]
        except (
            ValueError,
            KeyError,
            TypeError,
            IndexError,
            AttributeError,
            RecursionError,
        ) as error:
            raise ModelError(f"{path}: damaged safetensors header; {remedy}") from error
    needed = LENGTH.size + length + max(ends, default=0)
    if needed != size:
        raise ModelError(f"{path}: {size} bytes, its header says {needed}; {remedy}")
    return tensors


def _end(start: Any, end: Any) -> int:
    if type(start) is not int or type(end) is not int or not 0 <= start <= end:
        raise ValueError(f"offsets {start!r} and {end!r}")
    return end
