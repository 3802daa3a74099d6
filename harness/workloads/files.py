"""The files of a workload's folder, each read and checked by itself."""

from __future__ import annotations

import hashlib
import json
import reprlib
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine.document import DocumentError, read_document
from engine.errors import SchemaError
from harness.judging.validation import schema_check
from harness.workloads.entries import FAMILIES, Entry, parse_family
from harness.workloads.error import WorkloadError

HEADER_FILE = "workload.toml"
PROMPTS_FILE = "prompts.jsonl"
WARMUP_FILE = "warmup.jsonl"
SCHEMAS_FOLDER = "schemas"


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Header(_Strict):
    """What workload.toml says; the fields are those of harness.workloads.workload.Workload."""

    kind: Literal["text", "json"]
    description: str = Field(min_length=1)
    max_tokens: int = Field(ge=1, le=1_000_000)
    must_compile: int = Field(ge=0)
    allow_truncation: bool


class Message(_Strict):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str = Field(min_length=1)


class Line(_Strict):
    """One line of a prompts file."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    continues: str | None = None
    messages: list[Message] = Field(min_length=1)
    schema_name: str | None = Field(default=None, alias="schema")
    expected: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class PlacedLine:
    """A line with its place, `path:number`, for the errors about it."""

    line: Line
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFiles:
    """All that a folder holds.

    Args:
        digest: hex sha256 of what was read, line ends normalised; files that merely lie beside
            it do not count.
    """

    header: Header
    prompts: tuple[PlacedLine, ...]
    warmup: tuple[PlacedLine, ...]
    schemas: dict[str, dict[str, Any]]
    digest: str


def read_files(folder: Path) -> WorkloadFiles:
    """Return the content of a workload's folder.

    Raises:
        WorkloadError: a file is missing, or wrong by itself.
    """
    names = (HEADER_FILE, PROMPTS_FILE, WARMUP_FILE)
    schema_paths = sorted((folder / SCHEMAS_FOLDER).glob("*.json"))
    family_paths = sorted((folder / FAMILIES).glob("*.jsonl"))
    paths = (*(folder / name for name in names), *schema_paths, *family_paths)
    texts = {path: _read_text(path) for path in paths}
    return WorkloadFiles(
        header=_read_header(folder / HEADER_FILE, texts[folder / HEADER_FILE]),
        prompts=_read_lines(folder / PROMPTS_FILE, texts[folder / PROMPTS_FILE]),
        warmup=_read_lines(folder / WARMUP_FILE, texts[folder / WARMUP_FILE]),
        schemas={path.stem: _read_schema(path, texts[path]) for path in schema_paths}
        | {
            entry.name: _checked(entry)
            for path in family_paths
            for entry in parse_family(path, texts[path])
            if entry.refused is None and isinstance(entry.schema, dict)
        },
        digest=_digest({path.relative_to(folder).as_posix(): texts[path] for path in texts}),
    )


_Model = TypeVar("_Model", bound=BaseModel)


def _read_header(path: Path, text: str) -> Header:
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise WorkloadError(f"{path}: not TOML: {error}; correct it there") from None
    return _parse(Header, values, str(path))


def _read_lines(path: Path, text: str) -> tuple[PlacedLine, ...]:
    if not text:
        raise WorkloadError(f"{path}: holds no prompt; write one JSON object a line")
    # Not splitlines(): it also splits at U+2028, which may stand in a JSON string.
    lines = text.removesuffix("\n").split("\n")
    return tuple(
        PlacedLine(_read_line(line, f"{path}:{number}"), f"{path}:{number}")
        for number, line in enumerate(lines, start=1)
    )


def _read_line(text: str, place: str) -> Line:
    try:
        values = read_document(text)
    except DocumentError as error:
        raise WorkloadError(f"{place}: {error}; write one JSON object a line") from None
    line = _parse(Line, values, place)
    if line.messages[-1].role != "user":
        raise WorkloadError(
            f"{place}: the last message is from {line.messages[-1].role!r}; end with the user's"
        )
    return line


def _read_schema(path: Path, text: str) -> dict[str, Any]:
    try:
        schema = read_document(text)
    except DocumentError as error:
        raise WorkloadError(f"{path}: {error}; write one JSON document") from None
    if not isinstance(schema, dict):
        raise WorkloadError(f"{path}: {reprlib.repr(schema)} is not a schema; write a JSON object")
    try:
        schema_check(schema)
    except SchemaError as error:
        raise WorkloadError(f"{path}: {error}") from None
    return schema


def _checked(entry: Entry) -> Any:
    try:
        schema_check(entry.schema)
    except SchemaError as error:
        raise WorkloadError(f"{entry.family}.jsonl: {entry.name}: {error}") from None
    return entry.schema


def _parse(model: type[_Model], values: Any, place: str) -> _Model:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise WorkloadError(
            f"{place}: {where} is {reprlib.repr(first['input'])}: {first['msg']}; correct it there"
        ) from None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise WorkloadError(f"{path}: {error.strerror}; the workload needs this file") from None
    except UnicodeDecodeError as error:
        raise WorkloadError(f"{path}: byte {error.start} is not UTF-8; save it as UTF-8") from None


def _digest(texts: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(list(texts.items())).encode()).hexdigest()
