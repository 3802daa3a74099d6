"""A look at safetensors files before MLX reads them: are they whole?"""

from __future__ import annotations

import json
import struct
from pathlib import Path

from engine.errors import ModelError

LENGTH = struct.Struct("<Q")
REMEDY = "fetch the model again"


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
        _check_file(path)


def _check_file(path: Path) -> None:
    size = path.stat().st_size
    with path.open("rb") as stream:
        first = stream.read(LENGTH.size)
        length = LENGTH.unpack(first)[0] if len(first) == LENGTH.size else size
        if LENGTH.size + length > size:
            raise ModelError(f"{path}: truncated or damaged safetensors header; {REMEDY}")
        try:
            header = json.loads(stream.read(length))
            ends = [item["data_offsets"][1] for name, item in header.items() if name[0] != "_"]
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise ModelError(f"{path}: damaged safetensors header; {REMEDY}") from error
    needed = LENGTH.size + length + max(ends, default=0)
    if needed != size:
        raise ModelError(f"{path}: {size} bytes, its header says {needed}; {REMEDY}")
