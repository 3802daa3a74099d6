"""What the files of a workload hold, read strictly: an error names the place and the value."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from engine.document import DocumentError, read_document
from engine.errors import FmError


class WorkloadError(FmError, ValueError):
    """A file of a workload is missing or wrong; the text names file, line, value and remedy."""


class Strict(BaseModel):
    """What a file or a line of it holds: nothing is converted, nothing unknown is dropped."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


Model = TypeVar("Model", bound=Strict)


def read_text(path: Path) -> str:
    """Return the text of a file; WorkloadError where there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise WorkloadError(f"{path}: {error.strerror}; the workload needs this file") from None
    except UnicodeDecodeError as error:
        raise WorkloadError(f"{path}: byte {error.start} is not UTF-8; save it as UTF-8") from None


def read_lines(path: Path, text: str, model: type[Model]) -> Iterator[tuple[Model, str]]:
    """Yield what each line of a JSON Lines file holds, and its place, `path:number`.

    Raises:
        WorkloadError: a line is no JSON, or holds something else.
    """
    # Not splitlines(): it also splits at U+2028, which may stand in a JSON string.
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        place = f"{path}:{number}"
        try:
            values = read_document(line)
        except DocumentError as error:
            raise WorkloadError(f"{place}: {error}; write one JSON object a line") from None
        yield checked(model, values, place), place


def checked(model: type[Model], values: Any, place: str) -> Model:
    """Return values as their model; WorkloadError names the first that is wrong."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        if first["type"] == "missing":
            raise WorkloadError(f"{place}: {where} is missing; add it there") from None
        raise WorkloadError(
            f"{place}: {where} is {reprlib.repr(first['input'])}: {first['msg']}; correct it there"
        ) from None
