"""The files of a workload's folder, each read and checked by itself."""

from __future__ import annotations

import hashlib
import json
import reprlib
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from engine.document import DocumentError, read_document
from engine.errors import SchemaError
from harness.judging.validation import schema_check
from harness.workloads.strict import Strict, WorkloadError, checked, read_lines, read_text
from harness.workloads.zoo_entries import FAMILIES, parse_family

HEADER_FILE = "workload.toml"
PROMPTS_FILE = "prompts.jsonl"
WARMUP_FILE = "warmup.jsonl"
SCHEMAS_FOLDER = "schemas"


class Header(Strict):
    """What workload.toml says; the fields are those of harness.workloads.workload.Workload."""

    kind: Literal["text", "json"]
    description: str = Field(min_length=1)
    max_tokens: int = Field(ge=1, le=1_000_000)
    must_compile: int = Field(ge=0)
    allow_truncation: bool


class Message(Strict):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str = Field(min_length=1)


class Line(Strict):
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
    texts = {path: read_text(path) for path in paths}
    return WorkloadFiles(
        header=_read_header(folder / HEADER_FILE, texts[folder / HEADER_FILE]),
        prompts=_read_lines(folder / PROMPTS_FILE, texts[folder / PROMPTS_FILE]),
        warmup=_read_lines(folder / WARMUP_FILE, texts[folder / WARMUP_FILE]),
        schemas={path.stem: _read_schema(path, texts[path]) for path in schema_paths}
        | {
            entry.name: _checked_schema(entry.schema, f"{path}: {entry.name}")
            for path in family_paths
            for entry in parse_family(path, texts[path])
            if entry.refused is None and isinstance(entry.schema, dict)
        },
        digest=_digest({path.relative_to(folder).as_posix(): texts[path] for path in texts}),
    )


def _read_header(path: Path, text: str) -> Header:
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise WorkloadError(f"{path}: not TOML: {error}; correct it there") from None
    return checked(Header, values, str(path))


def _read_lines(path: Path, text: str) -> tuple[PlacedLine, ...]:
    if not text:
        raise WorkloadError(f"{path}: holds no prompt; write one JSON object a line")
    return tuple(
        PlacedLine(_ended_by_user(line, place), place)
        for line, place in read_lines(path, text, Line)
    )


def _ended_by_user(line: Line, place: str) -> Line:
    if line.messages[-1].role != "user":
        raise WorkloadError(
            f"{place}: the last message is from {line.messages[-1].role!r}; end with the user's"
        )
    return line


def _read_schema(path: Path, text: str) -> Any:
    try:
        schema = read_document(text)
    except DocumentError as error:
        raise WorkloadError(f"{path}: {error}; write one JSON document") from None
    if not isinstance(schema, dict):
        raise WorkloadError(f"{path}: {reprlib.repr(schema)} is not a schema; write a JSON object")
    return _checked_schema(schema, str(path))


def _checked_schema(schema: Any, place: str) -> Any:
    try:
        schema_check(schema)
    except SchemaError as error:
        raise WorkloadError(f"{place}: {error}") from None
    return schema


def _digest(texts: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(list(texts.items())).encode()).hexdigest()
