"""Entries of the zoo: a schema, documents that meet it, documents that do not.

A family is a file `zoo/*.jsonl` of the workload; a line is an entry. What compiles is a schema of
the workload too, with a prompt that asks for one document of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field

from harness.resources import workloads_dir
from harness.workloads.strict import Strict, WorkloadError, read_lines, read_text

ZOO = "schema-zoo"
FAMILIES = "zoo"


class Refusal(Strict):
    """Why a schema must not compile: the keyword at fault, and where it stands."""

    pointer: str
    keyword: str | None


class _Line(Strict):
    """One line of a family's file."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    about: str = Field(min_length=1)
    schema_: Any = Field(alias="schema")
    valid: list[Any] = Field(default_factory=list)
    invalid: list[Any] = Field(default_factory=list)
    stricter: dict[str, str] = Field(default_factory=dict)
    refused: Refusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One schema of the zoo.

    Args:
        about: what a document of it is, for a prompt: "a calendar event with two guests".
        valid, invalid: documents that meet the schema by the standard, and that do not.
        stricter: index of a valid document the grammar does not allow, as text -> why that is so.
        refused: what the compiler must name; None for a schema that must compile.
    """

    family: str
    name: str
    about: str
    schema: Any
    valid: tuple[Any, ...] = ()
    invalid: tuple[Any, ...] = ()
    stricter: Mapping[str, str] = field(default_factory=dict)
    refused: Refusal | None = None


def read_zoo(folder: Path | None = None) -> tuple[Entry, ...]:
    """Return every entry, family by family; by default those that fm brings along.

    Raises:
        WorkloadError: a line is no entry, or two have one name.
    """
    root = (workloads_dir() / ZOO if folder is None else folder) / FAMILIES
    entries = [
        entry
        for path in sorted(root.glob("*.jsonl"))
        for entry in parse_family(path, read_text(path))
    ]
    _check_names(entries, root)
    return tuple(entries)


def compact(document: Any) -> str:
    """Return a document as the grammar writes it: no blanks, keys in the order they stand in."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def parse_family(path: Path, text: str) -> Iterator[Entry]:
    """Yield the entries of a family's file; WorkloadError names the line that is none."""
    for found, _ in read_lines(path, text, _Line):
        yield Entry(
            family=path.stem,
            name=found.name,
            about=found.about,
            schema=found.schema_,
            valid=tuple(found.valid),
            invalid=tuple(found.invalid),
            stricter=found.stricter,
            refused=found.refused,
        )


def _check_names(entries: Iterable[Entry], root: Path) -> None:
    seen: dict[str, str] = {}
    for entry in entries:
        if entry.name in seen:
            raise WorkloadError(
                f"{root}: {entry.name!r} is in {seen[entry.name]} and {entry.family}; rename one"
            )
        seen[entry.name] = entry.family
